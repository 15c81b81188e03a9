"""Training on Ray: runs equal those of torchrun and survive a killed process."""

import time
from pathlib import Path

import psutil
import pytest

from tests.helpers.launch import Run

from .test_resume import config, corpus  # noqa: F401  (a fixture)

pytest.importorskip("ray", reason="needs outrider[ray]")
pytestmark = [pytest.mark.slow, pytest.mark.dist]


def worker_of(driver: int) -> psutil.Process:
    """Find a process that Ray placed."""
    below = psutil.Process(driver).children(recursive=True)
    return next(one for one in below if "TrainWorker" in " ".join(one.cmdline()))


@pytest.mark.timeout(600)
def test_a_killed_process_does_not_end_the_run(
    tmp_path: Path,
    corpus: Path,  # noqa: F811
) -> None:
    """The run equals an undisturbed one under torchrun, and every step is logged once."""
    values = config(corpus)
    values["train"] |= {"steps": 24}
    undisturbed = Run(tmp_path / "undisturbed", values, processes=2)
    undisturbed.finish()
    run = Run(tmp_path / "killed", values, processes=2, ray=True)
    process = run.start()
    log = run.folder / "log.jsonl"
    while not log.exists() or log.read_text().count('"update"') < 9:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    worker_of(process.pid).kill()
    output, _ = process.communicate(timeout=540)
    assert process.returncode == 0, output
    assert "resuming from" in output
    assert run.log() == undisturbed.log()
    assert run.weights_hash() == undisturbed.weights_hash()
    assert not (run.folder / "ray").exists()


@pytest.mark.timeout(300)
def test_a_mistake_gives_one_error_message(
    tmp_path: Path,
    corpus: Path,  # noqa: F811
) -> None:
    values = config(corpus)
    values["data"]["train"]["source"] = "missing.en"
    run = Run(tmp_path / "wrong", values, processes=2, ray=True)
    process = run.start()
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 2, output
    last = output.strip().splitlines()[-1]
    assert last.startswith("outrider: ")
    assert "missing.en" in last
