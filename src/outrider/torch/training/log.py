"""The log of a run: one JSON object per line, each step once, also after a resume."""

import json
from pathlib import Path
from typing import Any

from outrider.errors import DataError
from outrider.files import explained, open_regular, write_text


class Log:
    """Appends records to `log.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rewind(self, step: int) -> None:
        """Drop records after `step` and an incomplete last line."""
        kept = [record for record in read_log(self.path) if record["step"] <= step]
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))

    def write(self, record: dict[str, Any]) -> None:
        """Append a record, which must have the keys `event` and `step`."""
        with (
            explained(self.path, "the checkpoints are kept"),
            self.path.open("a", encoding="utf-8") as file,
        ):
            file.write(json.dumps(record) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return all complete records of a log; empty if there is no file."""
    if not path.exists():
        return []
    records = []
    with open_regular(path, error=DataError) as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            records.append(_record(line, path, number))
    return records


def _record(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
        if {"event", "step"} <= record.keys():
            return record
    except (ValueError, AttributeError, RecursionError):
        pass
    raise DataError(f"{path}, line {number}: is not a record of a run; remove the line")
