"""Write the package table of docs/architecture.md from the layers of import-linter."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
MARKS = re.compile(r"(<!-- packages: .*? -->\n).*?(<!-- /packages -->)", re.DOTALL)


def purpose(name: str) -> str:
    """Return the first clause of the docstring of a package; empty for a module."""
    file = ROOT / "src" / Path(*name.split(".")) / "__init__.py"
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) if file.exists() else ""
    return re.split(r"[.:;](?:\s|$)", (text or "").partition("\n\n")[0].replace("\n", " "))[0]


def table() -> str:
    """Return the packages from top to bottom, one per line."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one["name"] == "imports only point down")
    names = [name for layer in layers for name in layer.split(" | ")]
    rows = [
        f"- `{name.removeprefix('outrider.')}`: {text}\n"
        for name in names
        if (text := purpose(name))
    ]
    return "".join(["\n", *rows, "\n"])


def page() -> str:
    """Return the page with its table."""
    return MARKS.sub(lambda found: found[1] + table() + found[2], PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
