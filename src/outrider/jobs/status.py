"""Progress of a running, interrupted or finished job, read from its files."""

from dataclasses import dataclass, field
from pathlib import Path

from outrider.data.manifest import read_manifest
from outrider.errors import DataError
from outrider.files import Place, Store, as_place, open_store
from outrider.jobs.folder import ASIDE, DONE, JOB, TRANSLATED, Record, partial, read_record


@dataclass(frozen=True)
class Status:
    """Progress of a job."""

    folder: Place
    shards: int
    done: int
    rows: int
    rows_done: int
    rows_aside: int = 0
    speed: float | None = None
    """Rows per second since the last start; None before the first shard."""
    aside: dict[str, str] = field(default_factory=dict)
    """Faults of unreadable input shards by name."""

    @property
    def seconds_left(self) -> float | None:
        """Expected remaining time."""
        left = self.rows - self.rows_done - self.rows_aside
        return left / self.speed if self.speed else None


def read_status(folder: Place) -> Status:
    """Read the status of the job that writes `folder`."""
    folder = as_place(folder)
    store = open_store(folder)
    begun = store.has(JOB)
    if store.has(TRANSLATED) and not begun:
        summary = store.read_json(TRANSLATED)
        files, rows = len(summary["files"]), summary["rows"]
        return Status(folder, files, files, rows, rows)
    if isinstance(folder, Path) and store.has("manifest.json") and not begun:
        return _finished(folder)
    work = store if begun else open_store(partial(folder))
    if not work.has(JOB):
        which = "outrider distill or translate --shards"
        raise DataError(f"{store}: no job was started here; name the --out of {which}")
    return _unfinished(work)


def _unfinished(work: Store) -> Status:
    job, names = work.read_json(JOB), work.names()
    found = work.each(lambda name: _record(work, name), [n for n in names if n.endswith(DONE)])
    records = [record for record in found if record is not None]
    aside = {
        name.removesuffix(ASIDE): work.read_json(name) for name in names if name.endswith(ASIDE)
    }
    try:
        new = [record for record in records if record.ended >= job["began"]]
        seconds = max((record.ended for record in new), default=0.0) - job["began"]
        return Status(
            folder=work.place if isinstance(work.place, Path) else str(work),
            shards=job["shards"],
            done=len(records),
            rows=job["rows"],
            rows_done=sum(record.rows_read for record in records),
            rows_aside=sum(entry["rows"] for entry in aside.values()),
            speed=sum(record.rows_read for record in new) / seconds if seconds > 0 else None,
            aside={name: entry["fault"] for name, entry in aside.items()},
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"{work}: its files are damaged; run the job again") from error


def _record(work: Store, name: str) -> Record | None:
    try:
        return read_record(work, name)
    except DataError:
        return None  # the shard will be written again


def _finished(folder: Path) -> Status:
    manifest = read_manifest(folder)
    if manifest.origin is None:
        raise DataError(f"{folder}: was prepared from files, not by a job")
    shards = sum(len(split.shards) for split in manifest.splits.values())
    rows = sum(split.rows_read for split in manifest.splits.values())
    return Status(folder, shards, shards, rows, rows)
