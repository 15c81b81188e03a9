"""Text is printed literally: brackets are not markup in any command."""

import io
from pathlib import Path

import pytest
from rich.table import Table

from outrider.cli.console import new_console
from outrider.errors import MissingExtraError
from outrider.torch.training import run as finish


def test_brackets_are_printed_literally() -> None:
    file = io.StringIO()
    console = new_console(file=file, width=200)
    table = Table("[bold]", title="[red]")
    table.add_row("[/nonsense]")
    console.print("pip install 'outrider[plot]' [/b]", table)
    for text in ("outrider[plot]", "[/b]", "[bold]", "[red]", "[/nonsense]"):
        assert text in file.getvalue()


def test_commands_have_no_other_console(repository: Path) -> None:
    for path in (repository / "src" / "outrider" / "cli").glob("*.py"):
        if path.name != "console.py":
            assert " Console(" not in path.read_text(encoding="utf-8"), path


def test_the_hint_for_a_missing_extra_is_printed_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise MissingExtraError("matplotlib", "plot", "drawing")

    class Folder:
        log = curve = type("Log", (), {"path": None})

    class Config:
        name = "a"

    monkeypatch.setattr(finish, "read_log", lambda _: [])
    monkeypatch.setattr(finish, "draw_curve", missing)
    file = io.StringIO()
    finish._draw(Config(), Folder(), new_console(file=file, width=200))  # type: ignore[arg-type]
    assert "pip install 'outrider[plot]'" in file.getvalue()
