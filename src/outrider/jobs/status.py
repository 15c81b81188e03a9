"""How far a job is, read from its files alone: it may run, rest, or be finished."""

from dataclasses import dataclass, field
from pathlib import Path

from outrider.data.manifest import read_manifest
from outrider.errors import DataError
from outrider.files import read_json
from outrider.jobs.folder import JOB, TRANSLATED, partial, read_record

__all__ = ["Status", "read_status"]


@dataclass(frozen=True)
class Status:
    """What is done, and how much is left."""

    folder: Path
    shards: int
    done: int
    rows: int
    rows_done: int
    rows_aside: int = 0
    speed: float | None = None
    """Rows a second since the job was last started; none before its first shard."""
    aside: dict[str, str] = field(default_factory=dict)
    """Why shards of the input could not be read, by their names."""

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this speed."""
        left = self.rows - self.rows_done - self.rows_aside
        return left / self.speed if self.speed else None


def read_status(folder: Path) -> Status:
    """Tell how far the job is that writes `folder`, or works in it."""
    if (folder / TRANSLATED).is_file() and not (folder / JOB).is_file():
        summary = read_json(folder / TRANSLATED, error=DataError)
        files, rows = len(summary["files"]), summary["rows"]
        return Status(folder, files, files, rows, rows)
    if (folder / "manifest.json").is_file() and not (folder / JOB).is_file():
        return _finished(folder)
    work = folder if (folder / JOB).is_file() else partial(folder)
    if not (work / JOB).is_file():
        which = "outrider distill or translate --shards"
        raise DataError(f"{folder}: no job has begun there; name the --out of {which}")
    job = read_json(work / JOB, error=DataError)
    records = []
    for path in work.glob("*.done.json"):
        try:
            records.append(read_record(path))
        except DataError:
            continue  # it will be done anew
    aside = {
        path.name.removesuffix(".aside.json"): read_json(path, error=DataError)
        for path in sorted(work.glob("*.aside.json"))
    }
    try:
        new = [record for record in records if record.ended >= job["began"]]
        seconds = max((record.ended for record in new), default=0.0) - job["began"]
        return Status(
            folder=work,
            shards=job["shards"],
            done=len(records),
            rows=job["rows"],
            rows_done=sum(record.rows_read for record in records),
            rows_aside=sum(one["rows"] for one in aside.values()),
            speed=sum(record.rows_read for record in new) / seconds if seconds > 0 else None,
            aside={name: one["fault"] for name, one in aside.items()},
        )
    except (KeyError, TypeError):
        raise DataError(f"{work}: its files are damaged; run the job again") from None


def _finished(folder: Path) -> Status:
    manifest = read_manifest(folder)
    if manifest.origin is None:
        raise DataError(f"{folder}: was prepared from files; no job wrote it")
    shards = sum(len(split.shards) for split in manifest.splits.values())
    rows = sum(split.rows_read for split in manifest.splits.values())
    return Status(folder, shards, shards, rows, rows)
