"""The one console of all commands, and how they end on Ctrl-C.

Rich takes `[plot]` in a text for markup and drops it; messages, paths and tokens have brackets too,
so the console prints text as it is.

Where commands write: never over what they read, and whole or not at all.

A regular file is written beside its place and renamed at the end. What is none (a pipe, a device,
standard output by its name) has no place to rename to and is written straight.
"""

import io
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from outrider.errors import ConfigError, OutriderError, ResourceError
from outrider.files import explained, replacing

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "STDIN",
    "Nowhere",
    "StoppedError",
    "check_output",
    "check_parent",
    "check_stdout",
    "is_straight",
    "new_console",
    "open_output",
]


class StoppedError(OutriderError):
    """Ctrl-C stopped a command; the message says what is kept. The exit code is 130."""


def new_console(**options: Any) -> "Console":
    """Make a console that takes brackets literally; imports Rich only when called."""
    from rich.console import Console

    return Console(markup=False, **options)


STDIN = 0
"""Standard input, where `check_output` is told what a command reads."""

_DESCRIPTOR = re.compile(r"/dev/(?:stdout|stderr|stdin|fd/\d+)|/proc/[^/]+/fd/\d+")


class Nowhere(io.StringIO):
    """Stands for a closed stdout or stderr: what is written there is dropped."""

    def write(self, text: str, /) -> int:
        """Drop it."""
        return len(text)


def check_stdout(fix: str) -> None:
    """Refuse a closed stdout where the result of a command would be lost with it."""
    if sys.stdout is None or sys.stdout.closed or isinstance(sys.stdout, Nowhere):
        raise ResourceError(f"standard output is closed; {fix}")


def check_output(option: str, target: Path | None, *inputs: Path | int | None) -> None:
    """Refuse, before any work is done, a file that cannot be written or that is read as well."""
    if target is None:
        return
    if is_straight(target):
        return
    for source in inputs:
        if source is not None and _same(target, source):
            raise ConfigError(option, f"{target} is the input too and would be overwritten")
    if target.is_dir():
        raise ResourceError(f"{target}: cannot be written: it is a folder")
    try:
        place = next(p for p in target.resolve().parents if p.exists())
    except (OSError, RuntimeError, StopIteration):
        raise ResourceError(f"{target}: cannot be written: it leads nowhere") from None
    if not place.is_dir():
        raise ResourceError(f"{target}: cannot be written: {place} is not a folder")
    check_parent(target)
    if not os.access(place, os.W_OK):
        raise ResourceError(f"{target}: cannot be written: no permission to write in {place}")


def check_parent(target: Path) -> None:
    """Refuse a target in a folder that does not exist."""
    parent = target.resolve().parent
    if not parent.exists():
        raise ResourceError(f"{target}: the folder {parent} does not exist; create it first")


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """Open standard output, or a file that appears whole at the end, or a pipe or device."""
    if path is None:
        with suppress(AttributeError):
            sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        yield sys.stdout
    elif is_straight(path):
        # Standard output may be a file that others write to as well: add to it, never cut it off.
        with (
            explained(path, "what was written before that stays"),
            path.open("a", encoding="utf-8", newline="\n") as file,
        ):
            yield file
    else:
        with replacing(path) as file:
            yield file


def is_straight(path: Path) -> bool:
    """Whether it is not a file by its own name: a pipe, a device, or a descriptor."""
    if _DESCRIPTOR.fullmatch(os.path.abspath(path)):  # noqa: PTH100 (links must stay links)
        return True
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _same(target: Path, source: Path | int) -> bool:
    """Whether both are one file, by whatever names."""
    try:
        left, right = target.stat(), os.stat(source)  # noqa: PTH116 (a descriptor has no path)
    except (OSError, ValueError):
        return isinstance(source, Path) and _place(target) == _place(source)
    return stat.S_ISREG(left.st_mode) and os.path.samestat(left, right)


def _place(path: Path) -> str:
    return os.path.realpath(path)  # never fails, unlike Path.resolve
