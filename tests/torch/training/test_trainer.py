"""An update is the mean over its targets; runs stop, save and log at the right steps."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TrainerCallback

from outrider.errors import ConfigError, ResourceError
from outrider.torch.models import Seq2Seq
from outrider.torch.training.log import read_log
from tests.helpers.small_trainer import Stream, model, trainer


class Gradients(TrainerCallback):
    """Keeps the gradients of the last update."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    def on_pre_optimizer_step(self, *args: Any, model: Seq2Seq, **kwargs: Any) -> None:
        self.kept = [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_update_is_the_mean_over_all_its_targets(tmp_path: Path, accumulate: int) -> None:
    """Every target has the same weight, also if batches hold different numbers of targets."""
    network = model()
    rows = [Stream().batch(number) for number in range(accumulate)]
    joined = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    logits = network(
        input_ids=joined["input_ids"],
        decoder_input_ids=network.shift_right(joined["labels"]),
    ).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), joined["labels"].flatten(), label_smoothing=0.2
    )
    # cross_entropy averages the smoothed part over the same targets, as the equation does.
    expected = torch.autograd.grad(loss, list(network.parameters()))

    run = trainer(tmp_path, network, steps=1, accumulate=accumulate, clip=0, label_smoothing=0.2)
    gradients = Gradients()
    run.add_callback(gradients)
    run.run()
    for ours, theirs in zip(gradients.kept, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert read_log(tmp_path / "log.jsonl")[0]["loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_the_log_counts_steps_epochs_and_tokens(tmp_path: Path) -> None:
    run = trainer(tmp_path, steps=12, log_every=5, save_every=6)
    progress = run.run()
    records = read_log(tmp_path / "log.jsonl")
    assert [record["step"] for record in records] == [5, 6, 10, 12]
    assert [record["epoch"] for record in records] == [0, 1, 1, 2]
    counted = [int((Stream().batch(n)["labels"] != -100).sum()) for n in range(12)]
    assert progress.tokens == records[-1]["tokens"] == sum(counted)
    assert [one.progress.step for one in run.checkpoints.all()] == [6, 12]


def test_learning_rate_decays_by_steps_after_a_resume(tmp_path: Path) -> None:
    """Two warmup updates, then half the rate every three updates, also after a resume."""
    falls = {"schedule": "step", "warmup": 2, "decay": 0.5, "decay_every": 3, "learning_rate": 0.1}
    trainer(tmp_path / "whole", steps=10, **falls).run()
    rates = [record["learning_rate"] for record in read_log(tmp_path / "whole" / "log.jsonl")]
    shares = [0, 0.5, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]
    assert rates == pytest.approx([0.1 * share for share in shares])
    first = trainer(tmp_path / "cut", steps=6, save_every=6, **falls)
    first.run()
    rest = trainer(tmp_path / "cut", steps=10, **falls)
    rest.run(first.checkpoints.latest())
    assert [r["learning_rate"] for r in read_log(tmp_path / "cut" / "log.jsonl")] == rates


def test_stops_without_improvement_and_saves(tmp_path: Path) -> None:
    run = trainer(
        tmp_path, steps=50, evaluate_every=2, patience=2, scores=[3.0, 2.0, 2.5, 2.1, 9.0, 9.0]
    )
    progress = run.run()
    assert (progress.step, progress.stopped, progress.best) == (8, True, 2.0)
    latest = run.checkpoints.latest()
    assert latest is not None
    assert latest.progress.step == 8
    assert latest.progress.stopped


def test_a_stopped_run_does_not_resume(tmp_path: Path) -> None:
    scores = [1.0, 2.0]
    first = trainer(tmp_path, steps=50, evaluate_every=1, patience=1, scores=scores)
    first.run()
    again = trainer(tmp_path, steps=50, evaluate_every=1, patience=1, scores=[5.0])
    assert again.run(first.checkpoints.latest()).step == 2


def test_non_finite_loss_ends_the_run_with_advice(tmp_path: Path) -> None:
    network = model()
    with torch.no_grad():
        network.tokens.weight.fill_(float("inf"))
    with pytest.raises(ConfigError, match=r"train\.learning_rate: the loss became nan by step 1"):
        trainer(tmp_path, network, steps=3).run()


def test_full_disk_gives_one_sentence_and_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(tmp_path, steps=4, save_every=2)
    save = torch.save

    def fill_up(value: Any, path: Any, *rest: Any) -> None:
        if "00000004" in str(path):
            raise RuntimeError("PytorchStreamWriter failed writing file")
        save(value, path, *rest)

    monkeypatch.setattr(torch, "save", fill_up)
    with pytest.raises(ResourceError, match=r"step-00000004: the disk is full .* are kept; free"):
        run.run()
    latest = run.checkpoints.latest()
    assert latest is not None
    assert latest.progress.step == 2


def test_bfloat16_keeps_float32_weights_and_comes_close(tmp_path: Path) -> None:
    losses = {}
    for precision in ("float32", "bfloat16"):
        network = model()
        trainer(tmp_path / precision, network, steps=5, precision=precision).run()
        assert {p.dtype for p in network.parameters()} == {torch.float32}
        losses[precision] = read_log(tmp_path / precision / "log.jsonl")[-1]["loss"]
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)


def test_a_checkpoint_is_a_model_folder(tmp_path: Path) -> None:
    from outrider.torch.models import load_model

    network = model()
    run = trainer(tmp_path, network, steps=2)
    run.run()
    latest = run.checkpoints.latest()
    assert latest is not None
    loaded = load_model(latest.folder)
    for ours, theirs in zip(network.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(ours, theirs)
