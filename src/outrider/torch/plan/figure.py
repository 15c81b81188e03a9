"""One number of a plan, and where it comes from."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Figure", "How", "show"]

How = Literal["counted", "measured", "computed", "given"]


@dataclass(frozen=True)
class Figure:
    """A line of the table; `key` is its name in the JSON file."""

    key: str
    value: float | str
    unit: str
    how: How
    """Counted on the model itself, measured on this machine, computed from the other figures, or
    given by the user."""
    note: str = ""
    """What it assumes."""


def show(figure: Figure) -> str:
    """Write the value as people read it."""
    value, unit = figure.value, figure.unit
    if isinstance(value, str):
        return value
    if unit == "s":
        return _duration(value)
    if unit in ("B", "FLOP", "FLOP/s"):
        return _scaled(value, unit)
    digits = ",.0f" if value >= 100 or value == int(value) else ",.3g"
    return f"{value:{digits}} {unit}".strip()


def _scaled(value: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T", "P", "E", "Z"):
        if value < 1000 or prefix == "Z":
            return f"{value:,.3g} {prefix}{unit}" if prefix else f"{value:,.0f} {unit}"
        value /= 1000
    raise AssertionError


def _duration(seconds: float) -> str:
    for size, name in ((86400 * 365, "years"), (86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {name}"
    return f"{seconds:.3g} s"
