"""Distillation in a separate process that pauses at chosen units, to be killed there."""

import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from outrider.data.manifest import Split
from outrider.data.prepared import Prepared, open_prepared
from outrider.errors import OutriderError
from outrider.jobs import distill as module
from outrider.jobs import workers as job_workers
from outrider.jobs.folder import JobFolder, Unit

BLOCK, UNITS = 8, 11
"""Rows of a unit; number of units of both splits."""
distiller, start_worker = module._DistillBlock, job_workers.start_worker


@dataclass
class EngineThread:
    """A process that distils `home` into `out`."""

    home: Path
    out: Path
    workers: int = 1
    notes: Path | None = None
    """Prefix of the files for control and progress; by default `out`."""
    moment: str = "start"
    """When a worker pauses: at the `start` of a unit, or before its `record` is written."""

    def hold(self, *units: str) -> None:
        """Make workers pause at these units until the next call of `hold`."""
        Path(f"{self.notes or self.out}.hold").write_text(" ".join(units))

    def wait_at(self, *units: str) -> None:
        """Wait until these units have started."""
        self.wait_for(lambda: {*units} <= {name for name, _ in self.started()})

    def start(self) -> None:
        values = (self.home, self.out, self.workers, self.notes or self.out, self.moment)
        self.process = multiprocessing.get_context("fork").Process(target=run, args=values)
        with warnings.catch_warnings(action="ignore"):  # newer Pythons warn about such forks
            self.process.start()

    def started(self) -> list[tuple[str, int]]:
        """Return the started units, each with its process."""
        lines = told(self.notes or self.out, "log").splitlines()
        return [(name, int(process)) for name, process in (line.split() for line in lines)]

    def wait_for(self, what: Callable[[], bool]) -> None:
        while not what():
            assert self.process.is_alive(), told(self.notes or self.out, "error")
            time.sleep(0.02)

    def finish(self) -> str:
        """Wait for the end; return the error."""
        self.process.join()
        return told(self.notes or self.out, "error")

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def told(notes: Path | str, what: str) -> str:
    path = Path(f"{notes}.{what}")
    return path.read_text() if path.exists() else ""


def run(home: Path, out: Path, workers: int, notes: Path, moment: str) -> None:
    """Body of the process."""
    os.environ |= {"SLOW_NOTES": str(notes), "SLOW_MOMENT": moment}
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])  # so that workers find this module
    job_workers.start_worker = start_slow
    module._DistillBlock = lambda *parts: slow(distiller(*parts))
    place = {"workers": workers, "threads": 1, "progress": False}
    try:
        module.distill(home / "model", home / "prepared", out, **place)
    except OutriderError as error:
        Path(f"{notes}.error").write_text(str(error))
        sys.exit(2)


class SlowFolder(JobFolder):
    def finish(self, unit: Unit, *arguments: Any, **options: Any) -> None:
        wait("record", unit)
        super().finish(unit, *arguments, **options)


class SlowDistiller(distiller):
    def __call__(self, unit: Unit, advance: Any) -> None:
        with Path(f"{os.environ['SLOW_NOTES']}.log").open("a") as log:
            log.write(f"{unit.name} {os.getpid()}\n")
        wait("start", unit)
        super().__call__(unit, advance)


def wait(moment: str, unit: Unit) -> None:
    if os.environ["SLOW_MOMENT"] == moment:
        while unit.name in told(os.environ["SLOW_NOTES"], "hold").split():
            time.sleep(0.02)


def slow(fast: Any) -> SlowDistiller:
    folder = SlowFolder(fast.folder.path, fast.folder.origin)
    return SlowDistiller(fast.teacher, fast.prepared, folder)


def start_slow(*arguments: Any) -> SlowDistiller:
    """Run in a worker of Ray, which imports it by the name of this module."""
    return slow(start_worker(*arguments))


def splits(folder: Path) -> dict[str, Split]:
    """Return rows and checksums of every shard of a finished folder, in order."""
    return open_prepared(folder, verify=True).manifest.splits


def check_rows(home: Path, out: Path) -> None:
    """Check that every row of the input occurs once and in order, or is counted as dropped."""
    for name, split in splits(out).items():
        given, found = (sources(open_prepared(one), name) for one in (home / "prepared", out))
        rest = iter(given)
        assert all(row in rest for row in found), "another order, or a row twice"
        assert len(found) + sum(one.count for one in split.dropped.values()) == len(given)
    assert splits(out) == splits(home / "whole")


def sources(prepared: Prepared, split: str) -> list[str]:
    files = [prepared.folder / one.name for one in prepared.manifest.splits[split].shards]
    return [row for file in files for row in pq.read_table(file)["source"].to_pylist()]
