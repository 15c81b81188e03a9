"""Console, output files and status lines of commands.

The console disables Rich's markup, which would drop brackets of messages, paths and tokens. A
regular output file is written under a temporary name and renamed at the end; a pipe, a device or
standard output by name is written directly. An input file is never overwritten.
"""

import io
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from outrider.errors import ConfigError, OutriderError, ResourceError
from outrider.files import explained, replacing

if TYPE_CHECKING:
    from rich.console import Console


class StoppedError(OutriderError):
    """Ctrl-C stopped a command; the exit code is 130."""


def new_console(**options: Any) -> "Console":
    """Return a console without markup; Rich is imported on call."""
    from rich.console import Console

    return Console(markup=False, **options)


STDIN = 0
"""Standard input as an input of `check_output`."""

_DESCRIPTOR = re.compile(r"/dev/(?:stdout|stderr|stdin|fd/\d+)|/proc/[^/]+/fd/\d+")


class Nowhere(io.StringIO):
    """Replaces a closed stdout or stderr and discards its text."""

    def write(self, text: str, /) -> int:
        """Discard the text."""
        return len(text)


def check_stdout(fix: str) -> None:
    """Raise if stdout is closed, so that no result is lost."""
    if sys.stdout is None or sys.stdout.closed or isinstance(sys.stdout, Nowhere):
        raise ResourceError(f"standard output is closed; {fix}")


def check_output(option: str, target: Path | None, *inputs: Path | int | None) -> None:
    """Raise before any work if an output file cannot be written or is also an input."""
    if target is None or is_straight(target):
        return
    for source in inputs:
        if source is not None and _same(target, source):
            raise ConfigError(option, f"{target} is also the input and would be overwritten")
    if target.is_dir():
        raise ResourceError(f"{target}: cannot be written: it is a folder")
    try:
        folder = next(p for p in target.resolve().parents if p.exists())
    except (OSError, RuntimeError, StopIteration) as error:
        raise ResourceError(f"{target}: cannot be written: the path is not valid") from error
    if not folder.is_dir():
        raise ResourceError(f"{target}: cannot be written: {folder} is not a folder")
    check_parent(target)
    if not os.access(folder, os.W_OK):
        raise ResourceError(f"{target}: cannot be written: no permission to write in {folder}")


def check_parent(target: Path) -> None:
    """Raise if the folder of a target does not exist."""
    parent = target.resolve().parent
    if not parent.exists():
        raise ResourceError(f"{target}: the folder {parent} does not exist; create it first")


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """Open standard output, a file that is renamed into place at the end, or a pipe or device."""
    if path is None:
        with suppress(AttributeError):
            sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        yield sys.stdout
    elif is_straight(path):
        # Standard output may be a file that other processes also write: append, do not truncate.
        with (
            explained(path, "what was written before that stays"),
            path.open("a", encoding="utf-8", newline="\n") as file,
        ):
            yield file
    else:
        with replacing(path) as file:
            yield file


def is_straight(path: Path) -> bool:
    """Whether a path is a pipe, a device or a descriptor, not a regular file."""
    if _DESCRIPTOR.fullmatch(os.path.abspath(path)):  # noqa: PTH100 (links must stay links)
        return True
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _same(target: Path, source: Path | int) -> bool:
    """Whether both are the same file."""
    try:
        left, right = target.stat(), os.stat(source)  # noqa: PTH116 (a descriptor has no path)
    except (OSError, ValueError):
        # realpath never fails, unlike Path.resolve
        return isinstance(source, Path) and os.path.realpath(target) == os.path.realpath(source)
    return stat.S_ISREG(left.st_mode) and os.path.samestat(left, right)


def read_numbers(option: str, text: str, example: str) -> list[int]:
    """Parse positive integers such as `1,8,32`."""
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise ConfigError(option, f"got {text!r}, expected numbers such as {example}")
    return numbers


@contextmanager
def resumable(kept: str) -> Iterator[None]:
    """Turn Ctrl-C into a `StoppedError` that names what the same command continues from."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise StoppedError(f"stopped; {kept}; the same command continues") from error


@contextmanager
def report_interrupt(doing: list[str]) -> Iterator[None]:
    """Turn Ctrl-C into a `StoppedError` that names the current work, `doing[0]`."""
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedError(f"stopped ({doing[0]}); no result was written") from None


@contextmanager
def measuring() -> Iterator[Callable[[str], None]]:
    """Show a status line; yields the function that updates it."""
    doing = ["nothing yet"]
    with report_interrupt(doing), new_console(stderr=True).status("measuring") as status:

        def report(text: str) -> None:
            doing[0] = text
            status.update(text)

        yield report
