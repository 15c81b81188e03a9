"""Every step in `docs/architecture.md` names existing files and functions."""

import ast
import re
from pathlib import Path

from tests.helpers.docs_part import docs_part

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TRACES = re.findall(r"^### ([^\n]+)\n\n((?:\d\. [^\n]+\n)+)", PAGE, re.MULTILINE)


def names_in(path: Path) -> set[str]:
    """Return the functions, classes and `Class.method` names that a module defines."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [
                one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            found |= {f"{node.name}.{one.name}" for one in methods}
    return found


def test_the_three_traces_name_existing_functions() -> None:
    assert len(TRACES) == 3
    for title, text in TRACES:
        steps = text.splitlines()
        assert len(steps) <= 8, title
        known: set[str] = set()
        for step in steps:
            quoted = re.findall(r"`([\w./]+)`", step)
            files = [name for name in quoted if name.endswith(".py")]
            assert files, step
            for name in files:
                path = ROOT / "src" / "outrider" / name
                if path.is_file():
                    known |= names_in(path)
                else:
                    assert f"/{name}`" in text, f"{title}: {name}"
            for name in set(quoted) - set(files) - {"model", "Request", "Session"}:
                assert name in known, f"{title}: no {name} in {files}"


def test_the_package_table_is_generated() -> None:
    fresh = docs_part("packages").page()
    assert fresh == PAGE, "run python docs/packages.py"
