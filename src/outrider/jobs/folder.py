"""The folder of an unfinished job: `<out>.partial` on disk, `out` itself in an object store.

`origin.json`              everything that determines the output; a run that differs is refused
`job.json`                 the size of the job
`train-00007.parquet`      a finished shard
`train-00007.done.json`    its record; a shard without a record is written again
`train-00008.aside.json`   the fault of an unreadable input shard
`.lock`                    held by the process that distributes shards

A store cannot rename a folder. There `translated.json`, written last, marks `out` as complete. The
progress of a running, interrupted or finished job is read from these files.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from outrider.data.manifest import Dropped, Shard, Split, read_manifest
from outrider.errors import DataError, ResourceError
from outrider.files import Place, Store, as_place, explained, open_store, publish

Advance = Callable[[int], None]
"""Called with a number of finished rows."""


@dataclass(frozen=True)
class Unit:
    """One shard of input."""

    name: str
    """Base name of its output and record."""
    input: str
    """Input file."""
    rows: int
    first: int
    """Number of its first row in the whole input."""
    sha256: str = field(default="", kw_only=True)
    """Checksum of the input file, if not checked elsewhere."""


Work = Callable[[Unit, Advance], None]
"""Writes the output and the record of a unit; raises a `DataError` for damaged input."""


@dataclass(frozen=True)
class Outcome:
    """Result of a unit."""

    unit: Unit
    fault: str = ""
    """Fault of its input; empty if it is finished."""


def attempt(work: Work, unit: Unit, advance: Advance) -> Outcome:
    """Process a unit; damaged input is returned as an outcome, other errors are raised."""
    try:
        work(unit, advance)
    except DataError as error:
        return Outcome(unit, str(error))
    return Outcome(unit)


JOB, ORIGIN, TRANSLATED = "job.json", "origin.json", "translated.json"
"""Size of a job, its origin, and the summary of a finished folder of texts."""
LOCK, DONE, ASIDE = ".lock", ".done.json", ".aside.json"
"""Lock file, and suffixes of the records of finished and of unreadable shards."""
COMPARED = ("weights", "decode", "dtype", "data", "rows")
"""Keys of the origin that must be equal to resume a job."""


class Record(Split):
    """The record of a finished shard: its files, input, model and options."""

    input: str = ""
    input_sha256: str = ""
    weights: dict[str, str] | None = None
    """Checksums of the model; None in records of older versions."""
    decode: dict[str, Any] | None = None
    seconds: float = 0.0
    """Time taken."""
    ended: float = 0.0
    """Time of writing, in seconds since 1970."""


@dataclass(frozen=True)
class JobFolder:
    """The folder of an unfinished job."""

    place: Place
    origin: dict[str, Any]

    @cached_property
    def store(self) -> Store:
        """Store of the files."""
        return open_store(self.place)

    @property
    def path(self) -> Path:
        """The folder of a job on disk."""
        assert isinstance(self.place, Path)
        return self.place

    def begin(self, units: Sequence[Unit]) -> None:
        """Write the size of the job; units set aside before are tried again."""
        for leftover in self.store.names():
            if leftover.endswith(ASIDE):
                self.store.remove(leftover)
        rows = sum(unit.rows for unit in units)
        self.store.write_json(JOB, {"shards": len(units), "rows": rows, "began": time.time()})

    def missing(self, units: Sequence[Unit]) -> list[Unit]:
        """Return the unfinished units."""
        done = self.store.each(self.is_done, units)
        return [unit for unit, is_done in zip(units, done, strict=True) if not is_done]

    def finish(
        self,
        unit: Unit,
        shards: tuple[Shard, ...],
        dropped: Mapping[str, Dropped] | None = None,
        *,
        began: float,
    ) -> None:
        """Write the record of a finished unit; `began` is its start by `time.monotonic`."""
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
        self.store.write_json(f"{unit.name}{DONE}", record.model_dump(mode="json"))

    def is_done(self, unit: Unit) -> bool:
        """Whether a unit was finished with this model and its output is unchanged."""
        try:
            record = self.read(unit)
            return (
                record.input_sha256 == unit.sha256
                and all(
                    recorded in (None, _plain(self.origin[key]))
                    for key, recorded in (("weights", record.weights), ("decode", record.decode))
                )
                and all(self.store.sha256(shard.name) == shard.sha256 for shard in record.shards)
            )
        except (DataError, OSError):
            return False

    def read(self, unit: Unit) -> Record:
        """Read the record of a finished unit."""
        return read_record(self.store, f"{unit.name}{DONE}")

    def set_aside(self, unit: Unit, fault: str) -> None:
        """Write the fault of an unreadable unit."""
        self.store.write_json(
            f"{unit.name}{ASIDE}", {"input": unit.input, "rows": unit.rows, "fault": fault}
        )

    def publish(self, out: Place) -> None:
        """Move the result to `out`, without the files of the unfinished job."""
        if isinstance(out, Path):
            self.store.remove_unfinished()
            publish(self.path, out)
        # Last, so that an interrupted run can be resumed.
        remove_records(open_store(out))


def remove_records(store: Store) -> None:
    """Remove the files of the unfinished job from a complete folder."""
    names = store.names()
    for name in (JOB, ORIGIN, LOCK):
        if name in names:
            store.remove(name)
    store.each(store.remove, [name for name in names if name.endswith(DONE)])


def read_record(store: Store, name: str) -> Record:
    """Read a record; raise a `DataError` if it is damaged."""
    try:
        return Record.model_validate(store.read_json(name))
    except ValidationError as error:
        raise DataError(f"{store.show(name)}: damaged; run again to write it anew") from error


def is_own(name: str) -> bool:
    """Whether a name is reserved for the files of a job."""
    return name in (JOB, ORIGIN, TRANSLATED) or name.endswith((DONE, ASIDE, ".tmp"))


def partial(out: Place) -> Place:
    """Return the folder of the unfinished job that writes `out`."""
    return out if isinstance(out, str) else out.with_name(f"{out.name}.partial")


@contextmanager
def open_job(out: Place, origin: dict[str, Any]) -> Iterator[JobFolder]:
    """Open a new folder, or that of an unfinished job with the same origin."""
    work = open_store(partial(out))
    busy = DataError(f"{work}: another process is working there; wait for it")
    kept = f"finished shards are kept in {work}"
    try:
        with explained(out, kept) if isinstance(out, Path) else nullcontext():
            work.make()
            with work.alone(busy):
                _begin(work, origin)
                place = work.place
                yield JobFolder(place.resolve() if isinstance(place, Path) else place, origin)
    except ResourceError as error:
        if kept in str(error):
            raise
        raise ResourceError(f"{error}; {kept}") from error


def _begin(work: Store, origin: dict[str, Any]) -> None:
    if work.has(ORIGIN):
        check_origin(work, work.read_json(ORIGIN), origin)
    else:
        work.write_json(ORIGIN, origin)
    work.remove_unfinished()


def check_origin(
    folder: Store | Path, recorded: Mapping[str, Any] | None, origin: Mapping[str, Any]
) -> None:
    """Refuse to resume a job with another model, options or data."""
    before, now = _plain(recorded or {}), _plain(origin)
    for key in COMPARED:
        if before.get(key) != now.get(key):
            raise DataError(
                f"{folder}: was done differently ({key} was {_show(before.get(key))}, is now "
                f"{_show(now.get(key))}); remove it or choose another folder"
            )


def _plain(value: Any) -> Any:
    """Return a value as it is read back from JSON."""
    return json.loads(json.dumps(value))


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:57]}..."


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
