"""The log of a run: one JSON object per line, each step once, also after a crash and a resume."""

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["Log", "read_log"]


class Log:
    """Appends records to `log.jsonl`; a reader never sees a half-written one kept."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rewind(self, step: int) -> None:
        """Drop every record past `step` and a last line cut short: training writes them again."""
        kept = [record for record in read_log(self.path) if record["step"] <= step]
        staging = self.path.with_name(f".{self.path.name}")
        with staging.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in kept)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(self.path)

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; it must name its step."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """All whole records of a log; empty if there is none yet."""
    if not path.exists():
        return []
    records = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                break
            records.append(json.loads(line))
    return records
