"""Ray workers write the output of one process despite kills, full disks and damaged input."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from outrider.errors import MissingExtraError
from outrider.jobs.folder import read_status
from outrider.jobs.workers import on_ray
from tests.helpers.slow_distill import UNITS, EngineThread, check_rows
from tests.helpers.small_disk import BALLAST, fill, small_disk

pytestmark = [pytest.mark.slow, pytest.mark.dist]
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs outrider[ray]")
HELD = ("train-00002", "train-00003")


@pytest.fixture
def driver(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineThread]:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    driver = EngineThread(home, tmp_path / "out", workers=2)
    yield driver
    if driver.process.is_alive():
        family = psutil.Process(driver.process.pid).children(recursive=True)
        driver.kill()
        for one in family:
            if one.is_running():
                one.kill()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    message = r"--workers needs Ray, which is not installed: pip install 'outrider\[ray\]'"
    with pytest.raises(MissingExtraError, match=message), on_ray(None, workers=2, threads=1):
        pass


@needs_ray
@pytest.mark.parametrize("moment", ["start", "record"])
def test_a_killed_worker_costs_one_shard(driver: EngineThread, moment: str) -> None:
    driver.moment = moment
    driver.hold(*HELD)
    driver.start()
    driver.wait_at(*HELD)
    check_addresses(psutil.Process(driver.process.pid))
    victim = dict(driver.started())[HELD[0]]
    assert victim != driver.process.pid
    os.kill(victim, signal.SIGKILL)
    driver.hold()
    assert driver.finish() == ""
    started = driver.started()
    assert len(started) == UNITS + 1, "one unit more than there are: that of the killed worker"
    assert [name for name, _ in started].count(HELD[0]) == 2
    assert len({process for _, process in started}) == 3, "two workers, and a new one"
    check_rows(driver.home, driver.out)


def check_addresses(process: psutil.Process) -> None:
    """Check that Ray listens on loopback only."""
    everyone = [process, *process.children(recursive=True)]
    found = {
        connection.laddr.ip.removeprefix("::ffff:")
        for one in everyone
        for connection in one.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert found
    assert all(address.startswith("127.") or address == "::1" for address in found)


@needs_ray
def test_a_killed_driver_leaves_finished_shards_and_no_worker(driver: EngineThread) -> None:
    driver.hold(*HELD)
    driver.start()
    driver.wait_at(*HELD)
    workers = [psutil.Process(process) for process in {process for _, process in driver.started()}]
    assert len(workers) == 2
    driver.kill()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive, "Ray ends them; only two of its own agents stay a while longer"
    done = read_status(driver.out).done
    assert 2 <= done <= UNITS - 2
    driver.hold()
    driver.start()
    assert driver.finish() == ""
    assert len(driver.started()) == UNITS + len(HELD), "what each worker had in hand, and no more"
    check_rows(driver.home, driver.out)


@needs_ray
def test_a_damaged_shard_and_a_full_disk(driver: EngineThread, home: Path, tmp_path: Path) -> None:
    for name in ("prepared", "model", "whole"):
        shutil.copytree(home / name, tmp_path / name)
    driver.home = tmp_path
    damaged = tmp_path / "prepared" / "train-00001.parquet"
    whole = damaged.read_bytes()
    damaged.write_bytes(b"no parquet")
    driver.start()
    assert "train-00001.parquet: changed since it was written" in driver.finish()
    assert driver.process.exitcode == 2
    assert sorted(read_status(driver.out).aside) == ["train-00002", "train-00003"]
    damaged.write_bytes(whole)
    with small_disk(tmp_path / "disk") as disk:
        full = EngineThread(tmp_path, disk / "out", workers=2, notes=tmp_path / "full")
        fill(disk, leave=16384)
        full.start()
        assert "the disk is full" in (said := full.finish())
        assert "finished shards are kept in" in said
        (disk / BALLAST).unlink()
        (tmp_path / "full.error").unlink()
        full.start()
        assert full.finish() == ""
        check_rows(tmp_path, disk / "out")
