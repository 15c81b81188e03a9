"""What a job keeps on the disk while it is not finished, in `<out>.partial`.

`origin.json`              all that the output depends on: a run that differs is refused
`job.json`                 how much there is to do
`train-00007.parquet`      a finished shard
`train-00007.done.json`    its record, without which it does not count
`train-00008.aside.json`   why a shard of input could not be read
`.lock`                    held by the one process that hands out shards
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from outrider.data.manifest import Dropped, Shard, Split
from outrider.errors import DataError, ResourceError
from outrider.files import explained, file_sha256, locked, publish, read_json, write_json
from outrider.jobs.unit import Unit

__all__ = [
    "JOB",
    "TRANSLATED",
    "JobFolder",
    "Record",
    "check_origin",
    "is_own",
    "open_job",
    "partial",
    "read_record",
]

JOB, ORIGIN, TRANSLATED = "job.json", "origin.json", "translated.json"
"""How much there is to do, what it depends on, and what a finished folder of texts holds."""
COMPARED = ("weights", "decode", "dtype", "data", "rows")
"""Keys of an origin in which two runs must agree."""


class Record(Split):
    """A finished shard: its files, and what they were made from and with."""

    input: str = ""
    input_sha256: str = ""
    weights: dict[str, str] | None = None
    """Checksums of the model; none where an older version wrote the record."""
    decode: dict[str, Any] | None = None
    seconds: float = 0.0
    """How long it took."""
    ended: float = 0.0
    """When it was written, in seconds since 1970."""


@dataclass(frozen=True)
class JobFolder:
    """The finished shards of a job, and those that could not be read."""

    path: Path
    origin: dict[str, Any]

    def begin(self, units: Sequence[Unit]) -> None:
        """Note how much there is to do; what was set aside before is tried again."""
        for leftover in self.path.glob("*.aside.json"):
            leftover.unlink()
        rows = sum(unit.rows for unit in units)
        write_json(self.path / JOB, {"shards": len(units), "rows": rows, "began": time.time()})

    def finish(
        self,
        unit: Unit,
        shards: tuple[Shard, ...],
        dropped: Mapping[str, Dropped] | None = None,
        *,
        began: float,
    ) -> None:
        """Write the record that makes a shard count; `began` is a `time.monotonic`."""
        record = Record(
            shards=shards,
            rows_read=unit.rows,
            dropped=dict(dropped or {}),
            input=unit.input,
            input_sha256=unit.sha256,
            weights=self.origin["weights"],
            decode=self.origin["decode"],
            seconds=round(time.monotonic() - began, 3),
            ended=round(time.time(), 3),
        )
        write_json(self._record(unit), record.model_dump(mode="json"))

    def is_done(self, unit: Unit) -> bool:
        """Whether a shard was finished with this model, and is still what was written."""
        try:
            record = self.read(unit)
            return (
                record.input_sha256 == unit.sha256
                and all(
                    mine in (None, _plain(self.origin[key]))
                    for key, mine in (("weights", record.weights), ("decode", record.decode))
                )
                and all(file_sha256(self.path / one.name) == one.sha256 for one in record.shards)
            )
        except (DataError, OSError):
            return False

    def read(self, unit: Unit) -> Record:
        """Read the record of a finished shard."""
        return read_record(self._record(unit))

    def set_aside(self, unit: Unit, fault: str) -> None:
        """Note why a shard of input could not be read."""
        write_json(
            self.path / f"{unit.name}.aside.json",
            {"input": unit.input, "rows": unit.rows, "fault": fault},
        )

    def publish(self, out: Path) -> None:
        """Make all of it `out`, without what only an unfinished job needs."""
        _remove_unfinished(self.path)
        publish(self.path, out)
        # Only now: killed before, a run still knows which shards are finished.
        names = [JOB, ORIGIN, ".lock"]
        for path in [*out.glob("*.done.json"), *(out / name for name in names)]:
            path.unlink(missing_ok=True)

    def _record(self, unit: Unit) -> Path:
        return self.path / f"{unit.name}.done.json"


def read_record(path: Path) -> Record:
    """Read a record; one that is damaged is a `DataError`."""
    try:
        return Record.model_validate(read_json(path, error=DataError))
    except ValidationError:
        raise DataError(f"{path}: damaged; start again to write it anew") from None


def is_own(name: str) -> bool:
    """Whether a job keeps something of its own under this name, so that no shard may have it."""
    return name in (JOB, ORIGIN, TRANSLATED) or name.endswith((".done.json", ".aside.json", ".tmp"))


def partial(out: Path) -> Path:
    """Return where an unfinished job keeps what becomes `out`."""
    return out.with_name(f"{out.name}.partial")


@contextmanager
def open_job(out: Path, origin: dict[str, Any]) -> Iterator[JobFolder]:
    """Open the folder of finished shards, if it was begun in the same way, or a new one."""
    work = partial(out)
    busy = DataError(f"{work}: another process is at work there; wait for it")
    kept = f"finished shards are kept in {work}"
    try:
        with explained(out, kept):
            work.mkdir(parents=True, exist_ok=True)
            with locked(work / ".lock", busy):
                _begin(work, origin)
                yield JobFolder(work.resolve(), origin)
    except ResourceError as error:
        raise error if kept in str(error) else ResourceError(f"{error}; {kept}") from None


def _begin(work: Path, origin: dict[str, Any]) -> None:
    begun = work / ORIGIN
    if begun.is_file():
        check_origin(work, read_json(begun, error=DataError), origin)
    else:
        write_json(begun, origin)
    _remove_unfinished(work)


def _remove_unfinished(work: Path) -> None:
    """Remove what a killed worker was writing."""
    for leftover in (*work.glob("*.tmp"), *work.glob(".*.*")):
        leftover.unlink(missing_ok=True)


def check_origin(folder: Path, found: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> None:
    """What was begun with one model cannot be gone on with by another."""
    before, now = _plain(found or {}), _plain(wanted)
    for key in COMPARED:
        if before.get(key) != now.get(key):
            raise DataError(
                f"{folder}: was done differently ({key} was {_show(before.get(key))}, is now "
                f"{_show(now.get(key))}); remove it or choose another folder"
            )


def _plain(value: Any) -> Any:
    """Return a value as it reads back from JSON."""
    return json.loads(json.dumps(value))


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:57]}..."
