"""Plain values are parsed without a validator; Typer parses all others. Both give equal results."""

from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command

from outrider.cli.main import read_plainly

Seen = dict[str, Any]


def build(*, plainly: bool) -> tuple[Any, Seen]:
    app, seen = typer.Typer(add_completion=False), Seen()

    @app.command()
    def act(
        words: Annotated[list[str] | None, typer.Argument()] = None,
        name: str | None = None,
        count: int | None = None,
        few: Annotated[int, typer.Option(min=1, max=9)] = 3,
        share: float | None = None,
        place: Path | None = None,
        flag: bool = False,
        many: Annotated[list[int] | None, typer.Option()] = None,
    ) -> None:
        seen.update(locals())
        seen.pop("seen", None)

    command = get_command(app)
    if plainly:
        read_plainly(command)
    return command, seen


LINES = [
    [],
    ["one", "two three", ""],
    ["--name", "x", "--count", "12", "--flag", "w"],
    ["--count", "-7", "--share", "1e-3", "--place", "a/b"],
    ["--count", "0012"],
    ["--few", "9", "--many", "1", "--many", "2"],
    ["--count", "1_000"],
    ["--count", " 5"],
    ["--count", "9" * 30],
]
WRONG = [
    ["--count", "x"],
    ["--count", "1.5"],
    ["--count", "९९"],
    ["--few", "10"],
    ["--share", "much"],
    ["--many", "1", "--many", "x"],
    ["--nmae", "x"],
    ["--name"],
]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_values_equal_those_parsed_by_typer(line: list[str]) -> None:
    (plain, found), (usual, expected) = build(plainly=True), build(plainly=False)
    usual(line, standalone_mode=False)
    for _ in range(2):  # the same command tree parses several command lines
        plain(line, standalone_mode=False)
        assert found == expected


@pytest.mark.parametrize("line", WRONG, ids=" ".join)
def test_error_messages_equal_those_of_typer(line: list[str]) -> None:
    said = []
    for plainly in (True, False):
        command, _ = build(plainly=plainly)
        with pytest.raises(typer.TyperException) as caught:
            command(line, standalone_mode=False)
        said.append(caught.value.format_message())
    assert said[0] == said[1]
