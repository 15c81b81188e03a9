"""One worker in the driver's process: recovery from kills, damaged files and repeated runs."""

import json
import shutil
from pathlib import Path

import pytest

from outrider.cli.main import run
from outrider.data.prepared import Prepared
from outrider.errors import ConfigError, DataError
from outrider.jobs import teacher as teacher_module
from outrider.jobs.distill import distill
from outrider.jobs.folder import read_status
from tests.helpers.slow_distill import UNITS, EngineThread, check_rows


def distilled(home: Path, out: Path, **options) -> Prepared:
    return distill(home / "model", home / "prepared", out, threads=1, progress=False, **options)


@pytest.fixture
def copy(home: Path, tmp_path: Path) -> Path:
    """A copy of the corpus and the model that tests may damage."""
    for name in ("prepared", "model", "whole"):
        shutil.copytree(home / name, tmp_path / name)
    return tmp_path


def damage(copy: Path, name: str) -> bytes:
    path = copy / "prepared" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
    return whole


@pytest.mark.parametrize("moment", ["start", "record"])
def test_a_killed_driver_costs_one_shard(home: Path, tmp_path: Path, moment: str) -> None:
    driver = EngineThread(home, tmp_path / "out", moment=moment)
    driver.hold("train-00003")
    driver.start()
    driver.wait_at("train-00003")
    driver.kill()
    driver.hold()
    status = read_status(tmp_path / "out")
    assert (status.shards, status.done) == (UNITS, 3)
    driver.start()
    assert driver.finish() == ""
    names = [name for name, _ in driver.started()]
    assert len(names) == UNITS + 1, "only what was killed is done again"
    assert len(set(names)) == UNITS
    check_rows(home, tmp_path / "out")


def test_a_second_driver_is_refused_without_effect(home: Path, tmp_path: Path) -> None:
    driver = EngineThread(home, tmp_path / "out")
    driver.hold("train-00000")
    driver.start()
    driver.wait_at("train-00000")
    with pytest.raises(DataError, match=r"out\.partial: another process is working there; wait"):
        distilled(home, tmp_path / "out")
    driver.hold()
    assert driver.finish() == ""
    check_rows(home, tmp_path / "out")


def test_a_damaged_shard_is_named_and_the_others_are_finished(copy: Path, capsys) -> None:
    whole = damage(copy, "train-00002.parquet")
    (copy / "prepared" / "train-00003.parquet").rename(copy / "elsewhere")
    line = ["distill", f"{copy}/model", f"--data={copy}/prepared", f"--out={copy}/out", "-q"]
    assert run([*line, "--threads=1"]) == 2
    told = capsys.readouterr().err
    assert "train-00002.parquet: changed since it was written" in told
    assert f"set aside 4 of {UNITS} shards (of train-00002.parquet, train-00003.parquet)" in told
    assert told.count("\n") == 1
    assert not (copy / "out").exists()

    assert run(["jobs", "status", str(copy / "out")]) == 0
    told = capsys.readouterr().out
    assert f"shards     {UNITS - 4} of {UNITS}" in told
    assert "rows       53 of 85" in told
    assert "time left  0:00:00" in told
    assert "train-00006: " in told
    assert "train-00003.parquet: missing; run outrider prepare --force" in told

    (copy / "prepared" / "train-00002.parquet").write_bytes(whole)
    (copy / "elsewhere").rename(copy / "prepared" / "train-00003.parquet")
    with pytest.MonkeyPatch.context() as patch:
        decoded: list[int] = []
        original = teacher_module.decode_in_batches
        patch.setattr(
            teacher_module,
            "decode_in_batches",
            lambda *args, **kw: decoded.append(len(args[1])) or original(*args, **kw),
        )
        distilled(copy, copy / "out")
    assert len(decoded) == 4, "only what was set aside is done"
    check_rows(copy, copy / "out")


def test_a_shard_that_is_damaged_while_the_job_runs_is_set_aside(copy: Path) -> None:
    driver = EngineThread(copy, copy / "out")
    driver.hold("train-00000")
    driver.start()
    driver.wait_at("train-00000")
    whole = (copy / "prepared" / "train-00004.parquet").read_bytes()
    (copy / "prepared" / "train-00004.parquet").write_bytes(b"no parquet")
    driver.hold()
    assert "train-00004.parquet: damaged or missing" in driver.finish()
    assert driver.process.exitcode == 2
    assert sorted(read_status(copy / "out").aside) == ["train-00008", "train-00009"]
    (copy / "prepared" / "train-00004.parquet").write_bytes(whole)
    distilled(copy, copy / "out")
    check_rows(copy, copy / "out")


def test_a_shard_of_another_model_is_translated_again(copy: Path) -> None:
    driver = EngineThread(copy, copy / "out")
    driver.hold("train-00002")
    driver.start()
    driver.wait_at("train-00002")
    driver.kill()
    driver.hold()
    record = copy / "out.partial" / "train-00000.done.json"
    values = json.loads(record.read_text())
    assert values["rows_read"] == 8
    assert values["input"] == "train-00000.parquet"
    assert values["decode"]["strategy"] == "greedy"
    (weights,) = values["weights"]
    values["weights"][weights] = "0" * 64
    record.write_text(json.dumps(values))
    driver.start()
    assert driver.finish() == ""
    assert [name for name, _ in driver.started()].count("train-00000") == 2
    check_rows(copy, copy / "out")


def test_status_of_finished_and_unstarted_jobs(home: Path, tmp_path: Path) -> None:
    status = read_status(home / "whole")
    assert (status.shards, status.done, status.rows, status.rows_done) == (UNITS, UNITS, 85, 85)
    assert status.aside == {}
    with pytest.raises(DataError, match="no job was started here; name the --out of"):
        read_status(tmp_path)
    with pytest.raises(DataError, match="was prepared from files, not by a job"):
        read_status(home / "prepared")
    (tmp_path / "job.json").write_text("{}")
    with pytest.raises(DataError, match="its files are damaged; run the job again"):
        read_status(tmp_path)


def test_speed_and_time_left_come_from_the_records(home: Path, tmp_path: Path) -> None:
    driver = EngineThread(home, tmp_path / "out")
    driver.hold("train-00004")
    driver.start()
    driver.wait_at("train-00004")
    driver.kill()
    job = json.loads((tmp_path / "out.partial" / "job.json").read_text())
    for number in range(4):
        path = tmp_path / "out.partial" / f"train-{number:05d}.done.json"
        values = json.loads(path.read_text())
        path.write_text(json.dumps({**values, "ended": job["began"] + 4 * (number + 1)}))
    status = read_status(tmp_path / "out")
    assert status.speed == pytest.approx(2.0)
    assert status.seconds_left == pytest.approx((85 - 32) / 2)


def test_invalid_worker_counts_are_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workers: got 0, expected 1 or more"):
        distilled(home, tmp_path / "out", workers=0)
