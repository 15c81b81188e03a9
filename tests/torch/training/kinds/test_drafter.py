"""The drafter's loss equals its definition, and only the drafter's weights change."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.decoding import DecodeConfig, Request, decode
from outrider.decoding.statistics import Statistics
from outrider.torch.models import Drafter, DrafterConfig, LanguageModel, Seq2Seq
from outrider.torch.models.drafter import TrainingSlots
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.kinds import drafter as module
from outrider.torch.training.kinds.drafter import DrafterObjective, count_rounds, tokens_at
from tests.helpers import tiny
from tests.helpers.tensor_calls import torch_calls

MAKERS = {"seq2seq": tiny.seq2seq, "language_model": tiny.language_model}
PAD, EOS = 0, 1


def build(target: Seq2Seq | LanguageModel, **changes: Any) -> Drafter:
    options = {"dropout": 0.0, "rank": 6, "candidates": 5, "block": 12, "train_block": 4}
    torch.manual_seed(7)
    drafter = Drafter(DrafterConfig.for_target(target.config, **options | changes))
    with torch.no_grad():  # zeros would hide errors
        drafter.bias.normal_()
        drafter.mask.normal_()
    target.requires_grad_(False)
    return drafter.to(target.dtype).bind(target)


def batch(kind: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    rows = [torch.randint(4, 23, (n,), generator=generator).tolist() for n in (6, 3, 1)]
    if kind == "language_model":
        labels = torch.tensor([[IGNORED, *row, *[IGNORED] * (7 - len(row))] for row in rows])
        inputs = labels.masked_fill(labels == IGNORED, PAD)
        inputs[:, 0] = 3
        return {"input_ids": inputs, "labels": labels}
    labels = torch.tensor([[*row, EOS, *[IGNORED] * (7 - len(row))] for row in rows])
    source = torch.tensor([[4, 5, 6, 1], [7, 1, 0, 0], [8, 9, 1, 0]])
    return {"input_ids": source, "attention_mask": (source != PAD).long(), "labels": labels}


def weights(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("kind", MAKERS)
def test_only_the_drafter_is_trained(kind: str) -> None:
    target = MAKERS[kind]()
    drafter = build(target).train()
    before, frozen = weights(drafter), weights(target)
    optimizer = torch.optim.SGD(drafter.parameters(), lr=0.1)
    for _ in range(6):  # some blocks omit the sequential state
        loss = DrafterObjective().loss(drafter, batch(kind), divisor=11.0, smoothing=0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(parameter.grad is None for parameter in target.parameters())
    assert not target.training
    for name, tensor in weights(target).items():
        assert torch.equal(tensor, frozen[name]), name
    moved = {
        name for name, tensor in weights(drafter).items() if not torch.equal(tensor, before[name])
    }
    # A bias on keys adds the same value to all scores of a softmax, so its gradient is zero.
    still = {name for name in before.keys() - moved if not name.endswith("bias")}
    assert still == set()
    assert moved.isdisjoint(target.state_dict())


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("rank", [0, 6])
@pytest.mark.parametrize("shortlist", [0, 12])
def test_the_loss_is_a_mean_weighted_by_slot_index(kind: str, rank: int, shortlist: int) -> None:
    """Blocks one at a time, with the modules of decoding, in plain loops."""
    target = MAKERS[kind](dtype=torch.float64)
    options = {"rank": rank, "shortlist": shortlist}
    drafter = build(target, anchors=2, decay=0.7, whole=False, **options).eval()
    inputs = batch(kind)
    if shortlist:
        drafter.set_shortlist(torch.tensor([EOS, *range(5, 16)]))
        unlisted = set(inputs["labels"].unique().tolist()) - {IGNORED, EOS, *range(5, 16)}
        assert unlisted, "some labels must be missing from the list"
    found = DrafterObjective().loss(drafter, inputs, divisor=22.0, smoothing=0.0)

    labels, total, weight_sum, count = inputs["labels"], 0.0, 0.0, 0
    for row in range(len(labels)):
        wanted = [int(t) for t in labels[row] if t != IGNORED]
        count += len(wanted)
        for anchor in (len(wanted) // 4, 3 * len(wanted) // 4):
            for place, log_prob in enumerate(block(drafter, inputs, kind, row, anchor, wanted)):
                if log_prob is not None:
                    total -= 0.7**place * log_prob
                    weight_sum += 0.7**place
    # The weights are float32, the rest is float64.
    assert found.item() == pytest.approx(total / weight_sum * count / 22.0, rel=1e-6)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("shortlist", [0, 12])
def test_soft_labels_are_the_target_probabilities(
    kind: str, shortlist: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-log q(y) of hard labels becomes -sum p log q. Value and gradient, in loops."""
    monkeypatch.setattr(module, "WITHOUT_STATE", 0.0)
    target = MAKERS[kind](dtype=torch.float64)
    options = {"anchors": 2, "decay": 0.7, "whole": False, "shortlist": shortlist}
    drafter, inputs = build(target, **options), batch(kind)
    kept = list(range(tiny.VOCABULARY))
    if shortlist:
        kept = [EOS, *range(5, 16)]
        drafter.set_shortlist(torch.tensor(kept))
    run = module.run_target(drafter, inputs)
    fixed = module._cut(drafter.eval(), run.label_BT)
    monkeypatch.setattr(module, "_cut", lambda *_: fixed)
    drafter.train()
    found = []
    for soft in (False, True):
        drafter.config.soft_labels = soft
        found.append(DrafterObjective().loss(drafter, inputs, divisor=22.0, smoothing=0.0))

    logits = _states_to_logits(drafter, run, fixed)
    total, weights, count = torch.zeros((), dtype=torch.float64), 0.0, 0
    for row, labels in enumerate(run.label_BT):
        count += int((labels != IGNORED).sum())
        for slot in range(len(fixed.index_N)):
            place = int(fixed.anchor_BN[row, slot] + fixed.index_N[slot])
            if place >= len(labels) or int(labels[place]) not in kept:
                continue
            scores = target_head(drafter)[kept] @ run.hidden_BTD[row, place]
            bias = target.logits_bias
            p = (scores if bias is None else scores + bias[kept]).softmax(-1)
            log_q = logits[row, slot].log_softmax(-1)
            weight = 0.7 ** int(fixed.index_N[slot])
            total = total + weight * (log_q[kept.index(int(labels[place]))] - p @ log_q)
            weights += weight
    wanted = total / weights * count / 22.0
    assert (found[1] - found[0]).item() == pytest.approx(wanted.item(), rel=1e-4)  # float32
    for name in ("mask", "from_slot.weight", "blocks.0.feedforward.up.weight"):
        parameter = drafter.get_parameter(name)
        (ours,) = torch.autograd.grad(found[1] - found[0], parameter, retain_graph=True)
        (theirs,) = torch.autograd.grad(wanted, parameter, retain_graph=True)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-8)


def _states_to_logits(drafter: Drafter, run: module.TargetPass, slots: TrainingSlots) -> Tensor:
    """Logits of every slot, with the state along its block."""
    hidden = drafter.train_blocks(run.seen, run.fed_BT, slots, *run.source)
    rows, size = len(hidden), drafter.config.train_block
    fed = tokens_at(run.fed_BT, slots, 0).reshape(rows, -1, size)
    states = [
        drafter.run_state(block, fed[:, number])
        for number, block in enumerate(hidden.split(size, dim=1))
    ]
    return drafter.logits(hidden, torch.cat(states, dim=1))


@torch.inference_mode()
def block(
    drafter: Drafter, inputs: dict[str, Tensor], kind: str, row: int, anchor: int, wanted: list[int]
) -> list[float | None]:
    """log p of the tokens after position `anchor`, from a decoding state.

    None for tokens outside the shortlist.
    """
    backend = torch_calls(drafter.target, drafter=drafter)
    source = [int(t) for t in inputs["input_ids"][row] if t != PAD] if kind == "seq2seq" else []
    fed = [backend.start, *wanted]
    state = backend.encode([source], capacity=30, drafting=True)
    if anchor:
        backend.extend(torch.tensor([fed[:anchor]]), state)
    hidden = drafter._run_slots(torch.tensor([[fed[anchor]]]), state, [drafter.config.train_block])
    memory = torch.zeros(drafter.config.rank, dtype=hidden.dtype)
    found: list[float | None] = []
    kept = range(tiny.VOCABULARY) if drafter.kept_V is None else drafter.kept_V.tolist()
    for place, token in enumerate(wanted[anchor : anchor + drafter.config.train_block]):
        out = hidden[0, place]
        if drafter.config.rank:
            before = drafter._embed(torch.tensor(fed[anchor + place]))
            memory = torch.tanh(
                drafter.from_slot(out) + drafter.from_token(before) + drafter.from_state(memory)
            )
            out = out + drafter.to_token(memory)
        scores = (target_head(drafter) @ out + drafter.bias)[list(kept)]
        listed = token in kept
        found.append(float(scores.log_softmax(-1)[kept.index(token)]) if listed else None)
    return found


def target_head(drafter: Drafter) -> Tensor:
    return drafter.target.tokens.weight


@pytest.mark.parametrize("rank", [0, 6])
def test_only_slots_with_a_label_reach_the_head(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, inputs = build(tiny.seq2seq(dtype=torch.float64), rank=rank).eval(), batch("seq2seq")
    torch.manual_seed(3)
    whole = DrafterObjective().loss(drafter, inputs, divisor=13.0, smoothing=0.1)
    monkeypatch.setattr(module, "SHAPE_STEP", 1)
    scored: list[int] = []
    original = drafter.logits

    def watched(hidden: Tensor, state: Tensor | None = None) -> Tensor:
        scored.append(len(hidden))
        return original(hidden, state)

    drafter.logits = watched  # type: ignore[method-assign]
    labels: list[Tensor] = []
    listed = drafter.listed
    drafter.listed = lambda label: labels.append(label) or listed(label)  # type: ignore[method-assign,func-returns-value]
    torch.manual_seed(3)
    few = DrafterObjective().loss(drafter, inputs, divisor=13.0, smoothing=0.1)
    assert few.item() == pytest.approx(whole.item(), rel=1e-12)
    assert scored == [int((labels[0] != IGNORED).sum())]
    assert scored[0] < labels[0].numel()


def test_known_tokens_of_the_whole_block_are_random() -> None:
    drafter = build(tiny.seq2seq(), anchors=1, whole=True).train()
    seen: list[TrainingSlots] = []
    original = drafter.train_blocks

    def watched(*args: Any) -> Tensor:
        seen.append(args[2])
        return original(*args)

    drafter.train_blocks = watched  # type: ignore[method-assign]
    for _ in range(30):
        DrafterObjective().loss(drafter, batch("seq2seq"), divisor=1.0, smoothing=0.0)
    known = torch.stack([slots.known_BN[:, 4:] for slots in seen]).float()
    assert known[:, :, 0].all(), "slot 0 always knows the newest token"
    share = known[:, :, 1:].mean(-1)
    assert (share == 0).float().mean() > 0.4, "half of the rows begin from nothing"
    assert share.max() > 0.5
    assert all(int(slots.anchor_BN[:, 4:].abs().sum()) == 0 for slots in seen)


def test_tokens_beyond_the_end_are_ignored() -> None:
    slots = TrainingSlots(
        torch.tensor([[0, 0, 2, 2]]), torch.tensor([0, 1, 0, 1]), torch.zeros(4), torch.ones(1, 4)
    )
    assert tokens_at(torch.tensor([[5, 6, 7]]), slots, IGNORED).tolist() == [[5, 6, 7, IGNORED]]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("changes", [{}, {"rank": 0}, {"shortlist": 9}], ids=str)
def test_rounds_equal_those_of_tandem_decoding(kind: str, changes: dict[str, int]) -> None:
    """On greedy output of the target, the estimate equals the measured rounds."""
    target = MAKERS[kind](seed=3)
    drafter = build(target, **changes).eval()
    if changes.get("shortlist"):
        drafter.set_shortlist(torch.tensor([1, *range(4, 12)]))
    backend = torch_calls(target, drafter=drafter)
    inputs, rows = _greedy_output(backend, kind)
    stats = Statistics()
    config = DecodeConfig(mode="tandem", draft_tokens=drafter.config.train_block, suppress=(PAD,))
    decode(backend, rows, config, stats=stats)
    tokens, rounds = count_rounds(drafter, inputs)
    assert tokens == stats.tokens
    assert rounds == stats.rounds


def _greedy_output(backend: Any, kind: str) -> tuple[dict[str, Tensor], list[Request]]:
    sources = [[4, 5, 6, 1], [7, 8, 9, 1]] if kind == "seq2seq" else [[], []]
    rows = [
        Request(source=source, max_new_tokens=12) for source in sources[: 1 + (kind == "seq2seq")]
    ]
    found = decode(backend, rows, DecodeConfig(suppress=(PAD,)))
    lines = [[*h.tokens, *([EOS] if h.finish == "eos" else [])] for (h,) in found]
    longest = max(map(len, lines))
    labels = torch.tensor([[*line, *[IGNORED] * (longest - len(line))] for line in lines])
    if kind == "language_model":
        labels = torch.cat([torch.full_like(labels[:, :1], IGNORED), labels], dim=1)
        fed = labels.masked_fill(labels == IGNORED, PAD)
        fed[:, 0] = 3
        return {"input_ids": fed, "labels": labels}, rows
    source = torch.tensor(sources)
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": labels}, rows


def test_drafter_learns_to_predict() -> None:
    drafter = build(tiny.seq2seq()).train()
    inputs = batch("seq2seq")
    optimizer = torch.optim.Adam(drafter.parameters(), lr=0.01)
    losses = []
    for _ in range(80):
        loss = DrafterObjective().loss(drafter, inputs, divisor=13.0, smoothing=0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3
    assert math.isfinite(losses[-1])
    tokens, rounds = count_rounds(drafter.eval(), inputs)
    assert tokens / rounds > 3
    # Its confidence is high, and rightly so.
    backend = torch_calls(drafter.target, drafter=drafter)
    state = backend.encode([[4, 5, 6, 1]], capacity=20, drafting=True)
    draft = backend.draft(torch.tensor([[backend.start]]), state, 4)
    assert draft.tokens_BK[0].tolist() == inputs["labels"][0, :4].tolist()
    assert draft.confidence_BK.mean() > 0.75
