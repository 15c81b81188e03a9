"""The jobs benchmark at toy size; both variants write the same."""

import json
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from outrider.cli.main import run
from outrider.data import prepare as prepare_module
from outrider.errors import DataError, OutriderError
from outrider.jobs.workers import in_process
from outrider_lab.bench.jobs import measure
from tests.helpers.letters import save_corpus, save_translator


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_module, "BLOCK_ROWS", 8)
        save_translator(save_corpus(folder, lines=40, valid_rows=5), folder / "model")
    return folder


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run both variants in this process, without start-up time."""
    for way in ("on_ray", "processes"):
        monkeypatch.setattr(measure, way, lambda start, **_: nullcontext(in_process(start())))


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.skipif(find_spec("ray") is None, reason="needs outrider[ray]")
def test_the_command_writes_the_ratio(home: Path) -> None:
    line = ["lab", "bench", "jobs", f"{home}/model", f"--data={home}/prepared", "--rounds=1"]
    assert run([*line, "--rows=20", f"--json={home}/jobs.json"]) == 0
    result = json.loads((home / "jobs.json").read_text())
    assert result["ratio_to_bare_processes"] > 0
    assert (result["shards"], result["rows"], result["workers"]) == (3, 20, 2)
    assert set(result["start_seconds"]) == {"ray", "processes"}


@pytest.mark.usefixtures("here")
def test_the_ratio_is_computed_per_round(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([9, 9, 2, 1, 1, 4, 2, 3])  # a warm-up, then (ray, processes) or the reverse
    original = measure._time
    monkeypatch.setattr(measure, "_time", lambda *given: original(*given) * 0 + next(seconds))
    place = {"rounds": 3, "rows": 20}
    result = measure.measure_jobs(home / "model", home / "prepared", **place)
    assert result["seconds"] == {"ray": [2, 4, 2], "processes": [1, 1, 3]}
    assert result["ratio_to_bare_processes"] == 0.5
    assert result["rows_per_second"] == {"ray": 10, "processes": 20}


def test_too_few_blocks(home: Path) -> None:
    with pytest.raises(DataError, match="has 1 blocks in train, fewer than 2 workers"):
        measure.measure_jobs(home / "model", home / "prepared", rows=3)


def test_other_shards_are_an_error() -> None:
    class Folder:
        def __init__(self, shards: tuple[str, ...]) -> None:
            self.read = lambda _: type("Record", (), {"shards": shards})

    unit = type("Unit", (), {"name": "train-00000"})
    check = partial(measure._check_same, units=[unit])
    check({"ray": Folder(("a",)), "processes": Folder(("a",))})
    with pytest.raises(OutriderError, match="train-00000: Ray and bare processes wrote different"):
        check({"ray": Folder(("a",)), "processes": Folder(("b",))})
