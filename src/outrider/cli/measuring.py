"""What commands that measure have in common: lists of numbers, and a clean end on Ctrl-C."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from outrider.cli.console import StoppedError, new_console
from outrider.errors import ConfigError
from outrider.evaluation.metrics import check_tokenizer

__all__ = ["Tokenize", "measuring", "read_numbers", "report_interrupt"]


def read_numbers(option: str, text: str, example: str) -> list[int]:
    """Read whole numbers above zero, such as `1,8,32`, in their order."""
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise ConfigError(option, f"got {text!r}, expected numbers such as {example}")
    return numbers


def _known(name: str) -> str:
    try:
        return check_tokenizer(name)
    except ValueError as error:
        raise ConfigError("--tokenize", str(error)) from None


Tokenize = Annotated[
    str,
    typer.Option(
        help="SacreBLEU tokenizer; auto goes by the script of the references.", callback=_known
    ),
]


@contextmanager
def report_interrupt(doing: list[str]) -> Iterator[None]:
    """End cleanly on Ctrl-C: print what was being done, `doing[0]`, and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedError(f"stopped ({doing[0]}); no result was written") from None


@contextmanager
def measuring() -> Iterator[Callable[[str], None]]:
    """Show what is being measured; yields what to call with that."""
    doing = ["nothing yet"]
    with report_interrupt(doing), new_console(stderr=True).status("measuring") as status:

        def report(text: str) -> None:
            doing[0] = text
            status.update(text)

        yield report
