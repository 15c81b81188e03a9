"""The training benchmark compares equal work."""

import threading
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest

from outrider_lab.bench.train import peer
from outrider_lab.bench.train.corpus import synthetic_corpus
from outrider_lab.bench.train.engines import ENGINES, choose_precisions, run_engine
from outrider_lab.bench.train.setting import SpeedSetting
from outrider_lab.bench.train.speed import Turn, _rows, summarise


def test_ratios_are_medians_within_rounds() -> None:
    rounds = [
        {
            "bare": Turn(1.0, 10),
            "outrider": Turn(1.1, 10),
            "transformers": Turn(1.0, 5),
            "transformers-tuned": Turn(1.0, 8),
        },
        {"bare": Turn(2.0, 10), "outrider": Turn(2.0, 10)},
        {"bare": Turn(1.0, 10), "outrider": Turn(9.0, 10)},
    ]
    summary = summarise(rounds)
    assert summary["ratio_to_bare"] == 1.1
    assert summary["ratio_to_hf_trainer"] == pytest.approx(10 / 1.1 / 5, abs=1e-3)
    assert summary["ratio_to_tuned_hf_trainer"] == pytest.approx(10 / 1.1 / 8, abs=1e-3)
    assert summary["tokens_per_second"] == 5.0
    rows = _rows(SpeedSetting(Path("data"), precision="bfloat16"), rounds)
    assert [row["engine"] for row in rows] == list(ENGINES)
    assert [row["precision"] for row in rows] == ["bfloat16", "bfloat16", "float32", "float32"]
    assert [row["tokens_per_second"] for row in rows] == [10.0, 5.0, 5.0, 8.0]
    assert rows[3]["outrider_times_as_fast"] == summary["ratio_to_tuned_hf_trainer"]


def test_the_synthetic_corpus_has_the_lengths_of_captions(tmp_path: Path) -> None:
    prepared = synthetic_corpus(tmp_path / "corpus", rows=2000, vocab_size=100)
    reader = prepared.reader("train")
    source, target = reader.lengths(np.array([0]))
    assert 14 <= np.median(source) <= 17
    assert 30 <= source.max() <= 100
    assert np.corrcoef(source, target)[0, 1] > 0.8
    ids = reader.ids(0, "source_ids").flat
    assert (ids.min(), ids.max()) == (4, 99)
    assert (ids == 4).sum() > 10 * (ids == 50).sum()


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_engine_runs_only_in_its_turn(tmp_path: Path, name: str) -> None:
    data = synthetic_corpus(tmp_path / "corpus", rows=200, vocab_size=50).folder
    setting = SpeedSetting(data=data, batch_tokens=256, width=8, layers=1, heads=2, feedforward=16)
    ours, theirs = Pipe()
    engine = threading.Thread(target=run_engine, args=(theirs, name, setting))
    engine.start()
    ours.recv()
    assert not ours.poll(0.2)
    ours.send(2)
    seconds, tokens = ours.recv()
    assert seconds > 0
    assert 150 < tokens < 800  # tuned, the longest rows come first
    ours.send(0)
    engine.join(timeout=60)
    assert not engine.is_alive()


def test_the_bare_loop_and_our_trainer_get_the_same_batches(tmp_path: Path) -> None:
    data = synthetic_corpus(tmp_path / "corpus", rows=200, vocab_size=50).folder
    setting = SpeedSetting(data=data, batch_tokens=256, width=8, layers=1, heads=2, feedforward=16)
    counted = {}
    for name in ("bare", "outrider"):
        ours, theirs = Pipe()
        engine = threading.Thread(target=run_engine, args=(theirs, name, setting))
        engine.start()
        ours.recv()
        counts = []
        for steps in (1, 1, 3, 0):
            ours.send(steps)
            if steps:
                counts.append(ours.recv()[1])
        engine.join(timeout=60)
        counted[name] = counts
    assert counted["bare"] == counted["outrider"]


def test_the_tuned_peer_groups_by_length_and_uses_the_faster_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = synthetic_corpus(tmp_path / "corpus", rows=300, vocab_size=50)
    setting = SpeedSetting(prepared.folder, batch_tokens=256, width=8, layers=1, heads=2)
    given: list[dict] = []

    class Pretend:
        def __init__(self, *, args, train_dataset, **_) -> None:
            given.append(vars(args) | {"rows": len(train_dataset)})

        def remove_callback(self, _) -> None: ...
        def train(self) -> None: ...

    monkeypatch.setattr(peer, "Seq2SeqTrainer", Pretend)
    peer.train_defaults(setting, prepared, gate=None)
    peer.train_tuned(replace(setting, tuned_precision="bfloat16"), prepared, gate=None)
    defaults, tuned = given
    assert (defaults["train_sampling_strategy"], defaults["bf16"]) == ("random", False)
    assert (tuned["train_sampling_strategy"], tuned["bf16"]) == ("group_by_length", True)
    same = ("per_device_train_batch_size", "optim", "rows", "seed")
    assert {key: defaults[key] for key in same} == {key: tuned[key] for key in same}


def test_precisions_are_measured_for_both(tmp_path: Path) -> None:
    data = synthetic_corpus(tmp_path / "corpus", rows=300, vocab_size=50).folder
    setting = SpeedSetting(data, batch_tokens=256, width=8, layers=1, heads=2, feedforward=16)
    chosen = choose_precisions(setting)
    assert {chosen.precision, chosen.tuned_precision} <= {"float32", "bfloat16"}
    assert replace(chosen, precision="float32", tuned_precision="float32") == setting
