"""Glancing, and learning a small task with the CTC objective."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.decoding.parallel import collapse
from outrider.torch.models.configs import CtcConfig
from outrider.torch.models.ctc import Ctc
from outrider.torch.nn.ctc import viterbi
from outrider.torch.training.kinds.ctc import CtcObjective, glance
from tests.helpers import tiny

EOS, BLANK = 1, 0
OBJECTIVE = CtcObjective()


def batch(rows: int, seed: int) -> dict[str, Tensor]:
    """Token substitution: sources of 2 to 7 tokens with their targets."""
    generator = torch.Generator().manual_seed(seed)
    table = 4 + torch.randperm(tiny.VOCABULARY - 4, generator=torch.Generator().manual_seed(0))
    length_B1 = torch.randint(2, 8, (rows, 1), generator=generator)
    ids = torch.randint(4, tiny.VOCABULARY, (rows, 8), generator=generator)
    inside = torch.arange(8) < length_B1
    return {
        "input_ids": ids.where(inside, BLANK).scatter(1, length_B1, EOS),
        "attention_mask": (torch.arange(8) <= length_B1).long(),
        "labels": table[ids - 4].where(inside, -100).scatter(1, length_B1, EOS),
    }


def build(**values: Any) -> Ctc:
    target = tiny.seq2seq(hidden_size=32, encoder_layers=1, intermediate_size=64)
    config = CtcConfig.for_target(target.config, **{"layers": 2, "dropout": 0.0, **values})
    return Ctc(config).bind(target).train()


def exact(ctc: Ctc, inputs: dict[str, Tensor]) -> float:
    """The share of texts that one pass predicts exactly."""
    ctc.eval()
    with torch.inference_mode():
        logits = ctc(**{k: v for k, v in inputs.items() if k != "labels"}).logits
    slots_B = inputs["attention_mask"].sum(1) * ctc.config.upsample
    paths = zip(logits.argmax(-1).tolist(), slots_B.tolist(), strict=True)
    texts = [collapse(path[:slots], blank=BLANK) for path, slots in paths]
    wanted = [[t for t in row if t not in (EOS, -100)] for row in inputs["labels"].tolist()]
    return sum(a == b for a, b in zip(texts, wanted, strict=True)) / len(wanted)


def test_learns_to_decode_in_one_pass() -> None:
    ctc = build(reveal_steps=150)
    optimizer = torch.optim.Adam(ctc.parameters(), lr=4e-3)
    test = batch(100, seed=10**6)
    assert exact(ctc, test) == 0
    ctc.train()
    for step in range(260):
        inputs = batch(48, seed=step)
        loss = OBJECTIVE.loss(ctc, inputs, divisor=OBJECTIVE.count(inputs), smoothing=0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert exact(ctc, test) > 0.9


@settings(max_examples=15)
@given(seed=st.integers(0, 2**16), ratio=st.sampled_from([0.0, 0.3, 0.5]))
def test_glancing_reveals_a_share_of_the_wrong_slots(seed: int, ratio: float) -> None:
    ctc = build(reveal_start=ratio, reveal_end=ratio)
    inputs = batch(5, seed)
    inputs["labels"][4] = 5  # eight labels with repetitions do not fit the slots of a short row
    keep = inputs["attention_mask"].bool()
    with torch.no_grad():
        memory = ctc.encode(inputs["input_ids"], keep)
        logits = ctc.slots(memory, keep)
        lengths, slots = ctc.lengths(inputs["labels"]), ctc.count(memory, keep)
        path = viterbi(logits, inputs["labels"], lengths, slots, blank=BLANK)
    known = glance(ctc, memory, keep, inputs["labels"])
    assert ctc.training
    assert torch.equal(known, torch.where(known >= 0, path, -1))
    wrong = ((logits.argmax(-1) != path) & (path >= 0)).sum(1)
    assert (known >= 0).sum(1).tolist() == (wrong * ratio).round().long().tolist()


def test_revealed_tokens_depend_on_the_seed() -> None:
    ctc, inputs = build(), batch(8, seed=1)
    memory = ctc.encode(inputs["input_ids"], inputs["attention_mask"].bool())
    draws = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        draws.append(glance(ctc, memory, inputs["attention_mask"].bool(), inputs["labels"]))
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[1])


def test_counts_batches_in_training_only() -> None:
    ctc, inputs = build(), batch(4, seed=0)
    OBJECTIVE.loss(ctc, inputs, divisor=1.0, smoothing=0.0)
    assert int(ctc.steps) == 1
    ctc.eval()
    measured = [OBJECTIVE.loss(ctc, inputs, divisor=1.0, smoothing=0.0) for _ in range(2)]
    assert measured[0] == measured[1]
    plain = ctc(**inputs).loss * OBJECTIVE.count(inputs)
    torch.testing.assert_close(measured[0], plain)
    assert int(ctc.steps) == 1


@pytest.mark.parametrize("joint", [False, True])
def test_autocast_reaches_every_weight(joint: bool) -> None:
    """The first pass caches cast weights without a gradient; the second must not use them."""
    ctc, inputs = build(joint=joint, cross=True), batch(16, seed=3)
    frozen = {name: weight.clone() for name, weight in ctc.target.state_dict().items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = OBJECTIVE.loss(ctc, inputs, divisor=OBJECTIVE.count(inputs), smoothing=0.1)
    assert loss.dtype == torch.float32
    loss.backward()
    assert not [name for name, p in ctc.named_parameters() if p.grad is None or not p.grad.any()]
    torch.optim.SGD(ctc.parameters(), lr=0.1).step()
    changed = [n for n, w in ctc.target.state_dict().items() if not torch.equal(w, frozen[n])]
    assert bool(changed) == joint


def test_counts_all_labels() -> None:
    inputs = batch(6, seed=0)
    assert OBJECTIVE.count(inputs) == int(inputs["attention_mask"].sum())
