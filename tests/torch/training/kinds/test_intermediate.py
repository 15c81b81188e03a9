"""Auxiliary losses: the equation, the schedule, and no effect outside training."""

import math
import multiprocessing
import random
import resource
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM

import outrider
from outrider.config import build_config
from outrider.errors import ConfigError
from outrider.run_config import RunConfig, changed_key
from outrider.torch.models import LanguageModel, load_model
from outrider.torch.models.language_model import layer_weights
from outrider.torch.training.kinds.language_model import (
    IntermediateObjective,
    LanguageModelObjective,
)
from outrider.torch.training.kinds.segment_memory import SegmentObjective
from outrider.torch.training.log import read_log
from outrider.torch.training.run import train_run
from tests.helpers import tiny


def batch(rows: int = 2, length: int = 6) -> dict[str, Tensor]:
    generator = torch.manual_seed(rows + length)
    tokens = torch.randint(4, tiny.VOCABULARY, (rows, length), generator=generator)
    labels = tokens.clone()
    labels[0, length - 2 :] = -100
    return {"input_ids": tokens, "labels": labels}


def loss_of(
    model: LanguageModel, inputs: dict[str, Tensor], *, progress: float, smoothing: float = 0.0
) -> Tensor:
    objective = IntermediateObjective()
    objective.set_progress(progress)
    return objective.loss(
        model, inputs, divisor=float(objective.count(inputs)), smoothing=smoothing
    )


def equation(
    model: LanguageModel, inputs: dict[str, Tensor], progress: float, smoothing: float
) -> Tensor:
    """The sum over layers and tokens, from the formula."""
    seen: list[Tensor] = []
    model.hidden(inputs["input_ids"], seen)
    total, count = torch.zeros((), dtype=torch.float64), 0
    for layer, x_BTD in enumerate(seen, start=1):
        cut = layer / (2 * len(seen))
        if layer == len(seen):
            weight = 1.0
        elif progress >= cut:
            continue
        else:
            weight = (cut - progress) / cut
        h_BTD = x_BTD
        if model.config.norm == "pre":
            h_BTD = torch.nn.functional.layer_norm(
                x_BTD, x_BTD.shape[-1:], model.decoder.norm.weight, model.decoder.norm.bias
            )
        for ahead in range(1, model.config.next_tokens + 1):
            factor = weight if ahead == 1 else weight / 2
            for row, labels in enumerate(inputs["labels"].tolist()):
                for place in range(len(labels) - ahead):
                    label = labels[place + ahead]
                    if label == -100:
                        continue
                    h_D = h_BTD[row, place]
                    if ahead > 1:
                        h_D = model.next_tokens.further[ahead - 2].weight @ h_D
                    log_p_V = (model.tokens.weight @ h_D).log_softmax(-1)
                    loss = -(1 - smoothing) * log_p_V[label] - smoothing * log_p_V.mean()
                    total = total + factor * loss
                    count += layer == len(seen) and ahead == 1
    return total / count


@settings(max_examples=40, deadline=None)
@given(
    layers=st.integers(1, 4),
    next_tokens=st.integers(1, 3),
    progress=st.sampled_from([0.0, 0.1, 0.125, 0.3, 0.49, 0.5, 1.0]),
    smoothing=st.sampled_from([0.0, 0.1]),
    norm=st.sampled_from(["pre", "post"]),
)
def test_matches_the_equation_and_its_gradient(
    layers: int, next_tokens: int, progress: float, smoothing: float, norm: str
) -> None:
    model = tiny.language_model(
        dtype=torch.float64, layers=layers, next_tokens=next_tokens, norm=norm
    ).train()
    inputs, weights = batch(), list(model.parameters())
    fast = loss_of(model, inputs, progress=progress, smoothing=smoothing)
    slow = equation(model, inputs, progress, smoothing)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(
        torch.autograd.grad(fast, weights), torch.autograd.grad(slow, weights)
    )


@pytest.mark.parametrize(
    "parts",
    [
        {"residual": "reversible"},
        {"residual": "gru"},
        {"depth": "shared", "position": "coordinate"},
    ],
    ids=str,
)
def test_layers_of_every_model_predict(parts: dict[str, str]) -> None:
    model = tiny.language_model(dtype=torch.float64, layers=3, next_tokens=2, **parts).train()
    inputs, weights = batch(), list(model.parameters())
    fast, slow = loss_of(model, inputs, progress=0.1), equation(model, inputs, 0.1, 0.0)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(
        torch.autograd.grad(fast, weights), torch.autograd.grad(slow, weights)
    )


def test_layer_weights_decrease_to_zero_by_half() -> None:
    assert layer_weights(4, 0.0) == [1.0, 1.0, 1.0]
    assert layer_weights(4, 1 / 8) == pytest.approx([0.0, 1 / 2, 2 / 3])
    for layer in (1, 2, 3):
        border = layer / 8
        assert layer_weights(4, border)[layer - 1] == 0
        assert 0 < layer_weights(4, border - 1e-6)[layer - 1] < 1e-4
    assert layer_weights(4, 0.5) == layer_weights(4, 1.0) == [0.0, 0.0, 0.0]
    assert layer_weights(1, 0.0) == layer_weights(0, 0.0) == []


def test_the_second_half_uses_the_plain_loss() -> None:
    model, inputs = tiny.language_model(layers=3).train(), batch()
    divisor = float(IntermediateObjective().count(inputs))
    plain = LanguageModelObjective().loss(model, inputs, divisor=divisor, smoothing=0.1)
    assert torch.equal(loss_of(model, inputs, progress=0.5, smoothing=0.1), plain)
    assert loss_of(model, inputs, progress=0.0, smoothing=0.1) > 2 * plain


def test_validation_uses_the_plain_loss() -> None:
    model, inputs = tiny.language_model(layers=3, next_tokens=3), batch()
    logits_NV = model(input_ids=inputs["input_ids"]).logits[:, :-1].flatten(0, 1)
    plain = torch.nn.functional.cross_entropy(logits_NV, inputs["labels"][:, 1:].flatten())
    torch.testing.assert_close(loss_of(model, inputs, progress=0.0), plain)
    torch.testing.assert_close(model(**inputs).loss, plain)
    assert model.train()(**inputs).loss > 1.5 * plain


def test_further_tokens_are_saved_and_do_not_change_the_output(tmp_path: Path) -> None:
    model, plain = tiny.language_model(next_tokens=3), tiny.language_model(seed=1)
    plain.load_state_dict(
        {name: x for name, x in model.state_dict().items() if not name.startswith("next_tokens")}
    )
    tokens_BT = batch()["input_ids"]
    assert torch.equal(model(input_ids=tokens_BT).logits, plain(input_ids=tokens_BT).logits)
    steps = [one.extend(tokens_BT, one.open(2, capacity=8)) for one in (model, plain)]
    assert torch.equal(*steps)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config.next_tokens == 3
    assert len(again.next_tokens.further) == 2
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_more_tokens_ahead_than_a_row_has() -> None:
    model = tiny.language_model(next_tokens=5).train()
    tokens_BT = torch.tensor([[4, 5, 6]])
    inputs = {"input_ids": tokens_BT, "labels": tokens_BT}
    loss = loss_of(model, inputs, progress=0.0)
    loss.backward()
    assert math.isfinite(loss.detach())
    far, near = (model.next_tokens.further[k].weight.grad for k in (3, 0))
    assert not far.any()
    assert near.any()


def test_segments_predict_further_tokens_too() -> None:
    """Labels of segments have one column more than the inputs."""
    tokens = torch.randint(4, tiny.VOCABULARY, (2, 6), generator=torch.manual_seed(0))
    inputs = {"input_ids": tokens[:, :-1], "labels": tokens}
    losses = []
    for next_tokens in (1, 2):
        model = tiny.language_model(position="relative", memory=6, next_tokens=next_tokens).train()
        losses.append(SegmentObjective().loss(model, inputs, divisor=10.0, smoothing=0.0))
    assert 1.2 < losses[1] / losses[0] < 1.8, "half a loss of 8 tokens beside one of 10"


def excess_bytes(_: int) -> int:
    """How many bytes auxiliary losses add to the peak of a new process."""
    model = tiny.language_model(vocab_size=24_000, layers=5, next_tokens=2)
    plain = tiny.language_model(vocab_size=24_000, layers=5)
    inputs = batch(1, 512)
    peaks = []
    for one in (plain, model):
        loss_of(one.train(), inputs, progress=0.0 if one is model else 0.5).backward()
        one.zero_grad()
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return peaks[1] - peaks[0]


def test_nine_more_losses_do_not_store_nine_times_the_logits() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        excess = pool.submit(excess_bytes, 0).result()
    logits = 4 * 512 * 24_000
    assert excess < logits, "measured: 0.2; kept, they would be 9"


def run_config(folder: Path, *, run: str, **train: Any) -> RunConfig:
    generator = random.Random(0)
    text = "\n".join("".join(generator.choices("abcd ", k=20)) for _ in range(100))
    (folder / "text.txt").write_text(text + "\n")
    values = {
        "name": "foretell",
        "folder": str(folder / run),
        "data": {
            "folder": str(folder / "prepared"),
            "root": str(folder),
            "train": {"target": "text.txt"},
            "valid_fraction": 0.1,
            "sequence_length": 16,
            "tokenizer": {"kind": "char", "vocab_size": 64},
        },
        "model": {
            "type": "language_model",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_attention_heads": 2,
            "layers": 3,
            "next_tokens": 2,
        },
        "train": {
            "steps": 12,
            "batch_tokens": 256,
            "accumulate": 2,
            "warmup": 2,
            "schedule": "constant",
            "save_every": 3,
            "evaluate_every": 6,
            "log_every": 1,
            "device": "cpu",
            "intermediate_loss": True,
            **train,
        },
    }
    return build_config(RunConfig, values)


def log(folder: Path) -> list[dict[str, Any]]:
    timed = ("seconds", "tokens_per_second")
    records = read_log(folder / "log.jsonl")
    return [{k: v for k, v in record.items() if k not in timed} for record in records]


def test_resume_continues_the_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run stops after a quarter, where the second layer still has a weight."""
    heard: list[float] = []

    def set_progress(self: IntermediateObjective, progress: float) -> None:
        if progress >= 0.25 and 0.25 not in heard and stops:
            heard.append(0.25)
            raise KeyboardInterrupt
        heard.append(progress)
        self.progress = progress

    monkeypatch.setattr(IntermediateObjective, "set_progress", set_progress)
    stops = False
    at_once = train_run(run_config(tmp_path, run="a"))
    assert heard == [step / 12 for step in range(12)]
    heard.clear()
    stops = True
    with pytest.raises(KeyboardInterrupt):
        train_run(run_config(tmp_path, run="b"))
    with pytest.raises(ConfigError, match=r"train\.steps: differs from the run"):
        train_run(run_config(tmp_path, run="b", steps=24))
    resumed = train_run(run_config(tmp_path, run="b"))
    assert heard == [0, 1 / 12, 2 / 12, 0.25, *(step / 12 for step in range(3, 12))]
    assert log(at_once.parent) == log(resumed.parent)
    weights = [(one / "model.safetensors").read_bytes() for one in (at_once, resumed)]
    assert weights[0] == weights[1]
    assert load_model(resumed).config.next_tokens == 2
    assert isinstance(outrider.load(resumed).generate("ab", max_new_tokens=5), str)


def test_a_run_from_before_the_key_existed_can_be_resumed(tmp_path: Path) -> None:
    after = run_config(tmp_path, run="a", intermediate_loss=False).model_dump(mode="json")
    before = {**after, "train": {**after["train"], "steps": 5}}
    del before["train"]["intermediate_loss"]
    assert changed_key(before, after) is None
    after["train"]["intermediate_loss"] = True
    assert changed_key(before, after) == "train.intermediate_loss"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"type": "seq2seq"}, "is for a language_model, not a seq2seq"),
        ({"type": "language_model", "memory": 8}, "does not cover a memory"),
        ({"type": "language_model", "layers": 1}, "has no effect on a single layer"),
    ],
)
def test_impossible_plans_are_refused(model: dict[str, Any], message: str) -> None:
    values = {
        "name": "n",
        "folder": "f",
        "data": {"folder": "d", "train": {"target": "t"}},
        "train": {"intermediate_loss": True},
        "model": model,
    }
    with pytest.raises(ConfigError, match=f"train.intermediate_loss: {message}"):
        build_config(RunConfig, values)


@pytest.mark.parametrize("value", [0, -1, 65])
def test_next_tokens_has_limits(value: int) -> None:
    with pytest.raises(ConfigError, match=f"next_tokens: got {value}, expected 1 to 64"):
        tiny.language_model(next_tokens=value)
