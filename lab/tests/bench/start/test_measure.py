"""`outrider lab bench start`: time and memory of a new process."""

import json
from pathlib import Path

import pytest

from outrider.cli.main import run
from outrider.errors import ResourceError
from outrider.formats.spec import Seq2SeqSpec
from outrider_lab.bench.start.measure import measure_start
from tests.helpers import plain_folder

pytest.importorskip("outrider_native", reason="outrider-native is not installed")
pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")


@pytest.mark.slow
def test_both_engines_are_started_and_write_the_same(tmp_path: Path) -> None:
    path = tmp_path / "start.json"
    assert (
        run(["lab", "bench", "start", str(plain_folder.DEMO), "--runs", "2", "--json", str(path)])
        == 0
    )
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["same_text"]
    assert found["texts"]["ctranslate2"] == "Wo ist der Bahnhof?"
    peer = found["ctranslate2"]
    ratio = found["seconds"] / peer["seconds"]
    assert found["ratio_time_to_ctranslate2"] == pytest.approx(ratio, abs=0.01)
    assert found["ratio_memory_to_ctranslate2"] == pytest.approx(
        found["mib"] / peer["mib"], abs=0.01
    )
    assert {len(times) for times in found["all_seconds"].values()} == {2}
    assert found["packing"]["mib"] > found["mib"] > 20, "a mapped file is not copied"
    assert {"machine", "versions", "instruction_set"} <= found.keys()


def test_unsupported_models_are_named(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    config = Seq2SeqSpec(vocab_size=plain_folder.WORDS, position="rotary", **sizes)
    folder = plain_folder.save(tmp_path / "model", config)
    with pytest.raises(ResourceError, match=r"failed: .*position is 'rotary'; a CTranslate2"):
        measure_start(folder, runs=1)
