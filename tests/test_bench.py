"""`outrider bench`: all supported modes on the same text, with the texts compared."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.bench import bench, choose_lines
from outrider.cli.main import commands
from outrider.errors import DataError, ModelError
from tests.helpers import drafted

Command = Callable[..., tuple[int, str, str]]
TEXTS = ["a small dog runs", "two men", "where is it", "it is late", "we go home now"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafted.save_translator(tmp_path_factory.mktemp("bench") / "model", ctc=True)


def test_each_mode_and_batch_has_a_row(model: Path) -> None:
    result = bench({"one": model, "two": model}, TEXTS, batches=(1, 3), repeats=2)
    rows = result["rows"]
    modes = {(row["model"], row["mode"], row["batch"]) for row in rows}
    assert modes == {
        (name, mode, batch)
        for name in ("one", "two")
        for mode in ("ar", "tandem", "parallel")
        for batch in (1, 3)
    }
    assert all(row["sentences_per_second"] > 0 and row["sentences"] == 5 for row in rows)
    drafted_rows = [row for row in rows if row["mode"] == "tandem"]
    assert all(row["identical_to_own_greedy"] == 1.0 for row in drafted_rows)
    assert all(row["times_ar"] > 0 for row in drafted_rows)
    assert result["peak_rss_mib"] > 10


def test_a_pass_stops_after_its_time(model: Path) -> None:
    rows = bench({"one": model}, TEXTS, batches=(1,), modes=("ar",), seconds=0.0)["rows"]
    assert [row["sentences"] for row in rows] == [1]


def test_a_requested_mode_that_a_model_lacks_is_refused(tmp_path: Path) -> None:
    plain = drafted.save_language_model(tmp_path / "plain", drafter=False)
    rows = bench({"plain": plain}, TEXTS, batches=(2,), repeats=1, max_new_tokens=4)["rows"]
    assert [row["mode"] for row in rows] == ["ar"]
    with pytest.raises(ModelError, match="plain: this model has no drafter"):
        bench({"plain": plain}, TEXTS, modes=("tandem",))


def test_lines_are_chosen_evenly(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("".join(f"line {n}\n\n" for n in range(10)) + "x" * 1000 + "\n")
    assert choose_lines(path, 5) == [f"line {n}" for n in (0, 2, 4, 6, 8)]
    path.write_text("\n\n")
    with pytest.raises(DataError, match="holds no line of 1 to 500 characters"):
        choose_lines(path, 5)


def test_the_command_prints_and_writes_the_rows(
    model: Path, tmp_path: Path, command: Command
) -> None:
    text, path = tmp_path / "text", tmp_path / "bench.json"
    text.write_text("\n".join(TEXTS))
    line = ("bench", model, "--text", text, "--batches", "2", "--repeats", 1, "--json", path)
    code, out, _ = command(*line, "--mode", "ar,tandem")
    assert code == 0
    assert "tandem" in out
    assert [row["mode"] for row in json.loads(path.read_text())["rows"]] == ["ar", "tandem"]
    assert "--mode: got 'quick'" in command(*line, "--mode", "ar,quick")[2]


def test_moved_commands_name_their_replacement(command: Command) -> None:
    assert command("bench", "decode", "demo/en-de")[::2] == (
        2,
        "outrider: bench decode: has moved; use outrider lab bench decode\n",
    )
    assert "use outrider lab compare" in command("compare", "--help")[2]


def test_lab_names_its_installation_if_missing(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    commands.cache_clear()  # another test may have filled the cache
    code, _, said = command("lab", "compare")
    assert code == 2
    assert "pip install --editable lab" in said
