"""`lab/studies/jobs_simulation.py`: the loop of a job on a simulated clock."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

FREE = {"hand": 0.0, "wait": 0.0, "notice": 0.0, "load": 0.0, "spread": 0.0}


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    path = Path(__file__).parents[2] / "lab/studies" / "jobs_simulation.py"
    spec = importlib.util.spec_from_file_location("jobs_simulation", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_overhead_all_workers_are_busy(simulation: ModuleType) -> None:
    seen = simulation.simulate(
        simulation.Costs(**FREE), workers=7, unit_seconds=3.0, deaths_per_hour=0.0
    )
    assert seen.seconds == pytest.approx(simulation.UNITS * 3.0)
    assert (seen.deaths, seen.lost, seen.driver, seen.runs) == (0, 0.0, 0.0, 1)


def test_lost_work_follows_the_exponential_distribution(simulation: ModuleType) -> None:
    """Expected deaths per finished shard are e^(rate·t) - 1, each before the shard ends."""
    unit, hourly = 60.0, 2.0
    seen = simulation.simulate(
        simulation.Costs(**FREE), workers=500, unit_seconds=unit, deaths_per_hour=hourly
    )
    rate = hourly / 3600
    shards = 500 * simulation.UNITS
    assert seen.work == pytest.approx(shards * unit)
    assert seen.deaths == pytest.approx(shards * math.expm1(rate * unit), rel=0.15)
    mean = 1 / rate - unit / math.expm1(rate * unit)
    assert seen.lost == pytest.approx(seen.deaths * mean, rel=0.15)


def test_a_busy_driver_limits_the_speed(simulation: ModuleType) -> None:
    costs = simulation.Costs(**FREE | {"hand": 0.5, "wait": 0.01})
    seen = simulation.simulate(costs, workers=50, unit_seconds=1.0, deaths_per_hour=0.0)
    assert seen.driver / seen.seconds > 0.99
    assert seen.seconds == pytest.approx(50 * simulation.UNITS * (0.5 + 0.01 * 50), rel=0.15)


def test_shards_whose_workers_die_are_repeated(simulation: ModuleType) -> None:
    """Shards as long as a worker's mean life may fail four times in a row; no work is lost."""
    seen = simulation.simulate(
        simulation.Costs(**FREE), workers=20, unit_seconds=3600.0, deaths_per_hour=1.0
    )
    assert seen.runs > 1
    assert seen.work + seen.lost <= 20 * seen.seconds, "no two workers hold a piece at once"
    assert seen.work == pytest.approx(20 * simulation.UNITS * 3600.0)
