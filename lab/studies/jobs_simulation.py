"""Simulated jobs on up to 1,000 workers that die: repeated work, and the limit of the driver.

    python lab/studies/jobs_simulation.py --jobs results/bench-jobs.json --json FILE

The loop that assigns shards is that of `outrider distill`, with a fake Ray on a simulated clock.
Costs on that clock are measured on this machine with Ray: assigning a shard, waiting among many
workers, detecting a killed worker and starting another. Rows per second and load times come from a
file of `outrider lab bench jobs`.

The death rate of a worker is constant. A dying worker loses its current shard. Deaths while waiting
or loading are not simulated; they have little effect at these rates. The time of a shard varies as
measured, and all workers are equally fast. Files are not simulated.
"""

import argparse
import heapq
import json
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from types import SimpleNamespace
from typing import Any

from outrider.jobs.folder import Advance, Outcome, Unit
from outrider.jobs.workers import RETRIES, _run, on_ray
from outrider.runtime.provenance import machine, versions, write_result

WORKERS = (10, 100, 1000)
DEATHS = (0.0, 0.1, 1.0)
SECONDS = (1.0, 10.0, 60.0, 600.0)
UNITS = 20
"""Mean number of shards per worker."""
WAITING = (2, 100, 300, 1000)
HOUR = 3600.0


@dataclass(frozen=True)
class Costs:
    """Measured seconds."""

    hand: float
    """Of the driver, to assign a shard and record its end."""
    wait: float
    """Of the driver, per busy worker."""
    notice: float
    """From the death of a worker to the start of its replacement, without the model."""
    load: float
    """To load the model."""
    spread: float
    """Standard deviation of the time of a shard, as a share of it."""


@dataclass
class Seen:
    """Results on the simulated clock."""

    seconds: float = 0.0
    driver: float = 0.0
    """Seconds in which the driver was busy."""
    work: float = 0.0
    """Worker seconds of finished shards."""
    lost: float = 0.0
    """Worker seconds of lost work."""
    deaths: int = 0
    runs: int = 0
    """Number of runs of the command."""


class WorkerError(Exception):
    """A shard whose workers died too often."""


@dataclass
class Ray:
    """The part of Ray that the loop uses, on a clock that advances between events."""

    costs: Costs
    unit_seconds: float
    deaths_per_hour: float
    workers: int
    dice: random.Random
    seen: Seen = field(default_factory=Seen)
    now: float = 0.0
    numbers: Iterator[int] = field(default_factory=count)
    ends: list[tuple[float, int]] = field(default_factory=list)
    found: dict[int, Outcome | None] = field(default_factory=dict)
    tried: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    """Start and duration of each attempt at a shard."""
    exceptions: Any = field(
        default_factory=lambda: SimpleNamespace(RayTaskError=KeyError, RayActorError=WorkerError)
    )

    def actor(self) -> Any:
        """Return a fake actor."""
        return SimpleNamespace(do=SimpleNamespace(remote=self._start))

    def wait(self, busy: list[int], *, num_returns: int) -> tuple[list[int], list[int]]:
        """Advance the clock to the next end; the driver handles it when it is free."""
        assert num_returns == 1
        end, reference = heapq.heappop(self.ends)
        self.now = max(self.now, end)
        self._drive(self.costs.wait * len(busy))
        return [reference], []

    def get(self, reference: int) -> Outcome:
        """Return the result of a shard, or raise the error of Ray."""
        self._drive(self.costs.hand)
        outcome = self.found.pop(reference)
        self._count(reference, outcome)
        if outcome is None:
            raise WorkerError("ended too often")
        return outcome

    def stop(self) -> set[Unit]:
        """Stop all workers; return finished shards that the driver has not seen."""
        done = set()
        for end, reference in self.ends:
            outcome = self.found[reference] if end <= self.now else None
            self._count(reference, outcome)
            done |= set() if outcome is None else {outcome.unit}
        self.ends, self.found, self.tried = [], {}, {}
        return done

    def _count(self, reference: int, outcome: Outcome | None) -> None:
        """Add up all attempts at a shard that have started by now."""
        tried = [(at, lasts) for at, lasts in self.tried.pop(reference) if at < self.now]
        if outcome is not None:
            self.seen.work += tried.pop()[1]
        self.seen.lost += sum(min(lasts, self.now - at) for at, lasts in tried)
        self.seen.deaths += sum(at + lasts <= self.now for at, lasts in tried)

    def _drive(self, seconds: float) -> None:
        self.now += seconds
        self.seen.driver += seconds

    def _start(self, unit: Unit) -> int:
        reference, end = next(self.numbers), self.now
        self.found[reference], self.tried[reference] = None, []
        for _ in range(RETRIES + 1):
            need = self.unit_seconds * self.dice.lognormvariate(0, self.costs.spread)
            rate = self.deaths_per_hour / HOUR
            lived = self.dice.expovariate(rate) if rate else need
            self.tried[reference].append((end, min(lived, need)))
            end += min(lived, need)
            if lived >= need:
                self.found[reference] = Outcome(unit)
                break
            end += self.costs.notice + self.costs.load
        heapq.heappush(self.ends, (end, reference))
        return reference


def simulate(
    costs: Costs, *, workers: int, unit_seconds: float, deaths_per_hour: float, seed: int = 0
) -> Seen:
    """Process `UNITS` shards per worker; run again after a permanently failed shard."""
    ray = Ray(costs, unit_seconds, deaths_per_hour, workers, random.Random(seed))
    missing = [Unit(str(n), "", 1, n) for n in range(workers * UNITS)]
    while missing:
        ray.seen.runs += 1
        ray.now += costs.notice + costs.load
        done = set()
        try:
            for outcome in loop(ray, missing):
                done.add(outcome.unit)
        except Exception as error:
            if "its worker was killed" not in str(error):
                raise
            done |= ray.stop()
        missing = [unit for unit in missing if unit not in done]
    ray.seen.seconds = ray.now
    return ray.seen


def loop(ray: Ray, units: Iterable[Unit]) -> Iterator[Outcome]:
    """Run the loop of a job on the simulated Ray."""
    return _run(ray, [ray.actor() for _ in range(ray.workers)], units, lambda _: None)


class Nothing:
    """The work of a worker when only Ray is measured."""

    def __init__(self) -> None:
        self.process = os.getpid()

    def __call__(self, unit: Unit, advance: Advance) -> None:
        """Sleep as long as the unit requires; write the process id to its file, if any."""
        if unit.input:
            Path(unit.input).write_text(str(self.process))
        time.sleep(unit.rows / 1000)


def measure(scratch: Path) -> dict[str, float]:
    """Measure Ray: the driver's time per shard, and the time to replace a killed worker."""
    with on_ray(Nothing, workers=1, threads=1) as run:
        list(run([Unit(str(n), "", 0, n) for n in range(50)], lambda _: None))
        began = time.perf_counter()
        list(run([Unit(str(n), "", 0, n) for n in range(300)], lambda _: None))
        hand = (time.perf_counter() - began) / 300
        wait = _wait_seconds()
        notice = statistics.median(_killed(run, scratch / f"pid{n}") for n in range(3))
    return {"hand": hand, "wait": wait, "notice": notice}


class Sleeper:
    """A worker that sleeps or returns at once."""

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


def _wait_seconds() -> float:
    """Return the added wait time per busy worker: the slope over the number of references."""
    import ray

    took = {}
    sleeper = ray.remote(num_cpus=0)(Sleeper)
    busy, free = sleeper.remote(), sleeper.remote()
    ray.get([busy.sleep.remote(0), free.sleep.remote(0)])
    references = [busy.sleep.remote(60)] + [busy.sleep.remote(0) for _ in range(max(WAITING))]
    for many in WAITING:
        some = []
        for _ in range(20):
            done = free.sleep.remote(0)
            ray.get(done)
            among = [*references[:many], done]
            began = time.perf_counter()
            ray.wait(among, num_returns=1)
            some.append(time.perf_counter() - began)
        took[many] = statistics.median(some)
    ray.kill(busy)
    ray.kill(free)
    return statistics.linear_regression(list(took), list(took.values())).slope


def _killed(run: Callable[..., Iterator[Outcome]], note: Path) -> float:
    """Kill a worker during its shard; return the additional time of that shard."""

    def kill() -> None:
        while not note.exists() or not note.read_text():
            time.sleep(0.001)
        os.kill(int(note.read_text()), signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    began = time.perf_counter()
    list(run([Unit("killed", str(note), 500, 0)], lambda _: None))
    killer.join()
    return time.perf_counter() - began - 0.5


def read_costs(jobs: Path, measured: dict[str, float]) -> Costs:
    """Read the load time and the spread of shards from a file of `outrider lab bench jobs`."""
    result = json.loads(jobs.read_text())
    rounds = result["seconds"]["ray"]
    load = result["start_seconds"]["processes"]
    return Costs(**measured, load=load, spread=statistics.pstdev(rounds) / statistics.mean(rounds))


def row(costs: Costs, workers: int, unit_seconds: float, deaths: float) -> dict[str, float]:
    """Simulate one job; return its efficiency and losses."""
    seen = simulate(costs, workers=workers, unit_seconds=unit_seconds, deaths_per_hour=deaths)
    return {
        "workers": workers,
        "unit_seconds": unit_seconds,
        "deaths_per_worker_hour": deaths,
        "efficiency": seen.work / (workers * seen.seconds),
        "redone": seen.lost / (seen.work + seen.lost),
        "driver_busy": seen.driver / seen.seconds,
        "deaths": seen.deaths,
        "runs": seen.runs,
    }


def main() -> None:
    """Measure, simulate and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--jobs", type=Path, required=True, help="result of outrider lab bench jobs"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory() as scratch:
        costs = read_costs(options.jobs, measure(Path(scratch)))
    print(costs)
    rows = [row(costs, *one) for one in _asked()]
    for one in rows:
        print("  ".join(f"{key} {value:g}" for key, value in one.items()))
    # At `workers / seconds` shards per second this is the time of the driver per shard.
    limit = {many: many * (costs.hand + costs.wait * many) for many in WORKERS}
    result: dict[str, Any] = {"task": "jobs, simulated", "costs": vars(costs), "rows": rows}
    result |= {"driver_full_below_unit_seconds": limit, "units_per_worker": UNITS}
    result |= {"machine": machine(), "versions": versions()}
    if options.json is not None:
        write_result(options.json, result)


def _asked() -> list[tuple[int, float, float]]:
    return [(many, unit, deaths) for many in WORKERS for unit in SECONDS for deaths in DEATHS]


if __name__ == "__main__":
    main()
