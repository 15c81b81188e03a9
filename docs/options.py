"""Write the options of each strategy into the tables of docs/decoding.md and its translation."""

import re
from pathlib import Path

from outrider.options import OPTIONS

HERE = Path(__file__).parent
PAGES = {HERE / "decoding.md": ", ", HERE / "decoding.zh.md": "、"}
"""Pages, and the separator of names in each."""
ROW = re.compile(r"^(\| (?:`(greedy|sample|beam)`|all|全部) \|)[^|\n]*\|", re.MULTILINE)


def page(path: Path) -> str:
    """Return a page with its table."""

    def row(match: re.Match[str]) -> str:
        owner = match[2]
        names = [
            f"`{name}`"
            for name, option in OPTIONS.items()
            if owner in option.owners
            or (owner is None and not option.owners and name not in ("mode", "strategy"))
        ]
        return f"{match[1]} {PAGES[path].join(names)} |".replace("  |", " |")

    return ROW.sub(row, path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page(path), encoding="utf-8")
