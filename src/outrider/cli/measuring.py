"""Shared parts of commands that measure."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from outrider.cli.console import StoppedError, new_console
from outrider.errors import ConfigError
from outrider.evaluation.metrics import check_tokenizer


def read_numbers(option: str, text: str, example: str) -> list[int]:
    """Parse positive integers such as `1,8,32`."""
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
        help="SacreBLEU tokenizer; auto depends on the script of the references.", callback=_known
    ),
]


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
