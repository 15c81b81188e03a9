"""What a job keeps while it is not finished: on a disk in `<out>.partial`, in a store in `out`.

`origin.json`              all that the output depends on: a run that differs is refused
`job.json`                 how much there is to do
`train-00007.parquet`      a finished shard
`train-00007.done.json`    its record, without which it does not count
`train-00008.aside.json`   why a shard of input could not be read
`.lock`                    held by the one process that hands out shards

A store cannot rename a folder. There `translated.json`, written last, says that `out` is complete.

What a worker is given, and what it gives back.
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

from outrider.data.manifest import Dropped, Shard, Split
from outrider.errors import DataError, ResourceError
from outrider.files import Place, Store, explained, open_store, publish

__all__ = [
    "ASIDE",
    "DONE",
    "JOB",
    "LOCK",
    "ORIGIN",
    "TRANSLATED",
    "Advance",
    "JobFolder",
    "Outcome",
    "Record",
    "Unit",
    "Work",
    "attempt",
    "check_origin",
    "is_own",
    "open_job",
    "partial",
    "read_record",
    "remove_records",
]

Advance = Callable[[int], None]
"""Told how many rows more are done."""


@dataclass(frozen=True)
class Unit:
    """One shard of input."""

    name: str
    """What its output and its record are named after."""
    input: str
    """File it is read from."""
    rows: int
    first: int
    """Row of the whole that it begins with."""
    sha256: str = field(default="", kw_only=True)
    """Of the file, where nothing else says that it is what it was."""


Work = Callable[[Unit, Advance], None]
"""Writes the output of a unit and its record; a `DataError` says that the input is damaged."""


@dataclass(frozen=True)
class Outcome:
    """What became of a unit."""

    unit: Unit
    fault: str = ""
    """What is wrong with its input; empty where it is done."""


def attempt(work: Work, unit: Unit, advance: Advance) -> Outcome:
    """Do a unit; a damaged input is an outcome, all other errors are raised."""
    try:
        work(unit, advance)
    except DataError as error:
        return Outcome(unit, str(error))
    return Outcome(unit)


JOB, ORIGIN, TRANSLATED = "job.json", "origin.json", "translated.json"
"""How much there is to do, what it depends on, and what a finished folder of texts holds."""
LOCK, DONE, ASIDE = ".lock", ".done.json", ".aside.json"
"""Who hands out shards; how records of what is done, and of what cannot be, are named."""
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

    place: Place
    origin: dict[str, Any]

    @cached_property
    def store(self) -> Store:
        """Where the files are."""
        return open_store(self.place)

    @property
    def path(self) -> Path:
        """The folder, of a job that works on a disk alone."""
        assert isinstance(self.place, Path)
        return self.place

    def begin(self, units: Sequence[Unit]) -> None:
        """Note how much there is to do; what was set aside before is tried again."""
        for leftover in self.store.names():
            if leftover.endswith(ASIDE):
                self.store.remove(leftover)
        rows = sum(unit.rows for unit in units)
        self.store.write_json(JOB, {"shards": len(units), "rows": rows, "began": time.time()})

    def missing(self, units: Sequence[Unit]) -> list[Unit]:
        """Return the shards that are still to be done."""
        done = self.store.each(self.is_done, units)
        return [unit for unit, one in zip(units, done, strict=True) if not one]

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
        self.store.write_json(f"{unit.name}{DONE}", record.model_dump(mode="json"))

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
                and all(self.store.sha256(one.name) == one.sha256 for one in record.shards)
            )
        except (DataError, OSError):
            return False

    def read(self, unit: Unit) -> Record:
        """Read the record of a finished shard."""
        return read_record(self.store, f"{unit.name}{DONE}")

    def set_aside(self, unit: Unit, fault: str) -> None:
        """Note why a shard of input could not be read."""
        self.store.write_json(
            f"{unit.name}{ASIDE}", {"input": unit.input, "rows": unit.rows, "fault": fault}
        )

    def publish(self, out: Place) -> None:
        """Make all of it `out`, without what only an unfinished job needs."""
        if isinstance(out, Path):
            self.store.remove_unfinished()
            publish(self.path, out)
        # Only now: killed before, a run still knows which shards are finished.
        remove_records(open_store(out))


def remove_records(store: Store) -> None:
    """Remove from a complete folder what only an unfinished job needs."""
    names = store.names()
    for name in (JOB, ORIGIN, LOCK):
        if name in names:
            store.remove(name)
    store.each(store.remove, [name for name in names if name.endswith(DONE)])


def read_record(store: Store, name: str) -> Record:
    """Read a record; one that is damaged is a `DataError`."""
    try:
        return Record.model_validate(store.read_json(name))
    except ValidationError:
        raise DataError(f"{store.show(name)}: damaged; start again to write it anew") from None


def is_own(name: str) -> bool:
    """Whether a job keeps something of its own under this name, so that no shard may have it."""
    return name in (JOB, ORIGIN, TRANSLATED) or name.endswith((DONE, ASIDE, ".tmp"))


def partial(out: Place) -> Place:
    """Return where an unfinished job keeps what becomes `out`."""
    return out if isinstance(out, str) else out.with_name(f"{out.name}.partial")


@contextmanager
def open_job(out: Place, origin: dict[str, Any]) -> Iterator[JobFolder]:
    """Open the folder of finished shards, if it was begun in the same way, or a new one."""
    work = open_store(partial(out))
    busy = DataError(f"{work}: another process is at work there; wait for it")
    kept = f"finished shards are kept in {work}"
    try:
        with explained(out, kept) if isinstance(out, Path) else nullcontext():
            work.make()
            with work.alone(busy):
                _begin(work, origin)
                place = work.place
                yield JobFolder(place.resolve() if isinstance(place, Path) else place, origin)
    except ResourceError as error:
        raise error if kept in str(error) else ResourceError(f"{error}; {kept}") from None


def _begin(work: Store, origin: dict[str, Any]) -> None:
    if work.has(ORIGIN):
        check_origin(work, work.read_json(ORIGIN), origin)
    else:
        work.write_json(ORIGIN, origin)
    work.remove_unfinished()


def check_origin(
    folder: Store | Path, found: Mapping[str, Any] | None, wanted: Mapping[str, Any]
) -> None:
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
