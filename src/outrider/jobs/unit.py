"""What a worker is given, and what it gives back."""

from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.errors import DataError

__all__ = ["Advance", "Outcome", "Unit", "Work", "attempt"]

Advance = Callable[[int], None]
"""Told how many rows more are done."""


@dataclass(frozen=True)
class Unit:
    """One shard of input."""

    name: str
    """What its output and its record are named after."""
    input: str
    """File it is read from."""
    rows: int
    first: int
    """Row of the whole that it begins with."""
    sha256: str = field(default="", kw_only=True)
    """Of the file, where nothing else says that it is what it was."""


Work = Callable[[Unit, Advance], None]
"""Writes the output of a unit and its record; a `DataError` says that the input is damaged."""


@dataclass(frozen=True)
class Outcome:
    """What became of a unit."""

    unit: Unit
    fault: str = ""
    """What is wrong with its input; empty where it is done."""


def attempt(work: Work, unit: Unit, advance: Advance) -> Outcome:
    """Do a unit; a damaged input is an outcome, all other errors are raised."""
    try:
        work(unit, advance)
    except DataError as error:
        return Outcome(unit, str(error))
    return Outcome(unit)
