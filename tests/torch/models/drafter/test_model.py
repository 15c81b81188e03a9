"""The drafter equals its equations, and decoding equals training."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.errors import ConfigError, ModelError
from outrider.torch.models import (
    Drafter,
    DrafterConfig,
    LanguageModel,
    Seq2Seq,
    load_drafter,
)
from outrider.torch.models.configs import CtcConfig
from outrider.torch.models.ctc import Ctc
from outrider.torch.models.drafter import TrainingSlots
from outrider.torch.nn.loss import IGNORED
from tests.helpers import tiny
from tests.helpers.tensor_calls import torch_calls

SOURCE = [[4, 5, 6, 1], [7, 1], [8, 9, 1]]
MAKERS = {"seq2seq": tiny.seq2seq, "language_model": tiny.language_model}


def build(target: Seq2Seq | LanguageModel, ahead: Ctc | None = None, **changes: Any) -> Drafter:
    options = {"dropout": 0.0, "rank": 6, "candidates": 5, "block": 12}
    torch.manual_seed(7)
    drafter = Drafter(DrafterConfig.for_target(target.config, **options | changes))
    with torch.no_grad():  # zeros would hide errors
        drafter.bias.normal_()
        drafter.mask.normal_()
        drafter.slot.weight.normal_()
    return drafter.to(target.dtype).bind(target, ahead).eval()


def opened(target: Seq2Seq | LanguageModel, drafter: Drafter, fed_BT: Tensor, prefix: int) -> Any:
    """A decoding state with `prefix` tokens, after one rollback."""
    backend = torch_calls(target, drafter=drafter)
    source = SOURCE if isinstance(target, Seq2Seq) else [[]] * 3
    state = backend.encode(source, capacity=24, drafting=True)
    backend.extend(fed_BT[:, :prefix], state)
    backend.extend(fed_BT[:, prefix : prefix + 2], state)
    state.rollback(torch.full((3,), prefix))
    return backend, state


def seen_states(target: Seq2Seq | LanguageModel, fed_BT: Tensor) -> tuple[list[Tensor], Any, Any]:
    seen: list[Tensor] = []
    if isinstance(target, Seq2Seq):
        memory, keep = torch_calls(target)._encode(target, SOURCE)
        target.decode(fed_BT, memory, keep, seen)
        return seen, memory, keep
    target.hidden(fed_BT, seen)
    return seen, None, None


@pytest.mark.parametrize("position", ["sinusoidal", "rotary", "learned"])
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("prefix", [1, 4])
def test_decoding_equals_training(kind: str, position: str, prefix: int) -> None:
    target = MAKERS[kind](position=position, dtype=torch.float64)
    drafter = build(target, layers=2)
    fed_BT = torch.randint(4, tiny.VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(1))
    backend, state = opened(target, drafter, fed_BT, prefix)
    slots = 5
    draft = backend.draft(fed_BT[:, prefix : prefix + 1], state, slots)

    with torch.no_grad():
        seen, memory, keep = seen_states(target, fed_BT)
        index_N = torch.arange(slots)
        layout = TrainingSlots(
            torch.full((3, slots), prefix), index_N, index_N * 0, (index_N == 0).expand(3, -1)
        )
        hidden = drafter.train_blocks(seen, fed_BT, layout, memory, keep)
        before = torch.cat([fed_BT[:, prefix : prefix + 1], draft.tokens_BK[:, :-1]], dim=1)
        logits = drafter.logits(hidden, drafter.run_state(hidden, before))
        base = drafter.logits(hidden)
    torch.testing.assert_close(draft.ids_BKC, base.topk(5).indices)
    wanted = logits.gather(-1, draft.ids_BKC).softmax(-1).float()
    torch.testing.assert_close(draft.prob_BKC, wanted, atol=1e-6, rtol=0)
    best = draft.ids_BKC.gather(-1, wanted.argmax(-1, keepdim=True))[..., 0]
    assert draft.tokens_BK.tolist() == best.tolist()


def test_one_slot_equals_the_equations() -> None:
    """Slot 0 of a one-layer drafter in plain matrix products."""
    target = tiny.marian_like(dtype=torch.float64)
    drafter = build(target)
    fed_BT = torch.tensor([[0, 5, 9]]).expand(3, -1)
    backend, state = opened(target, drafter, torch.cat([fed_BT, fed_BT], dim=1), 2)
    draft = backend.draft(fed_BT[:, 2:3], state, 1)

    with torch.no_grad():
        seen, memory, _ = seen_states(target, fed_BT)
        assert drafter.config.taps == [0, 1]
        parts = [
            norm(seen[tap][0, :2]) for norm, tap in zip(drafter.state_norms, (0, 1), strict=True)
        ]
        key_value = torch.cat(parts, dim=-1) @ drafter.inject[0].weight.T + drafter.inject[0].bias
        block, width, heads = drafter.blocks[0], 16, 2
        angle = 2 * 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        x = target.tokens.weight[9] * math.sqrt(width) + drafter.slot.weight[0]
        x = x + drafter.from_last(torch.cat(parts, dim=-1)[1])
        x = x + torch.cat([angle.sin(), angle.cos()])
        q, k, v = (block.attention.qkv(x)).chunk(3)
        keys, values = (
            torch.cat([key_value[:, :width], k[None]]),
            torch.cat([key_value[:, width:], v[None]]),
        )
        x = block.attention_residual.norm(
            x + block.attention.out(attention(q, keys, values, heads))
        )
        memory_k, memory_v = block.cross.kv(memory[0]).chunk(2, dim=-1)  # type: ignore[union-attr]
        looked = attention(block.cross.q(x), memory_k, memory_v, heads)  # type: ignore[union-attr]
        x = block.cross_residual.norm(x + block.cross.out(looked))  # type: ignore[union-attr]
        x = block.feedforward_residual.norm(x + block.feedforward(x[None])[0])
        h = drafter.norm(x)
        s = torch.tanh(
            drafter.from_slot(h)
            + drafter.from_token.weight @ (target.tokens.weight[9] * math.sqrt(width))
        )
        bias = drafter.bias + target.logits_bias
        z = target.tokens.weight @ (h + drafter.to_token.weight @ s) + bias
        base = target.tokens.weight @ h + bias
        sure = torch.sigmoid(drafter.confidence(torch.cat([h, s])))
    candidates = base.topk(5).indices
    assert draft.ids_BKC[0, 0].tolist() == candidates.tolist()
    wanted = z[candidates].softmax(-1).float()
    torch.testing.assert_close(draft.prob_BKC[0, 0], wanted, atol=1e-6, rtol=0)
    torch.testing.assert_close(draft.confidence_BK[0], sure.float(), atol=1e-6, rtol=0)


def attention(q: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    out = []
    for one in range(heads):
        part = slice(one * len(q) // heads, (one + 1) * len(q) // heads)
        weights = (keys[:, part] @ q[part] / math.sqrt(len(q) // heads)).softmax(0)
        out.append(weights @ values[:, part])
    return torch.cat(out)


def test_rows_are_independent() -> None:
    target = tiny.seq2seq(dtype=torch.float64)
    drafter = build(target)
    backend = torch_calls(target, drafter=drafter)
    together = backend.encode(SOURCE, capacity=20, drafting=True)
    fed = torch.tensor([[0, 4, 5, 6], [0, 7, 8, 9], [0, 5, 5, 5]])
    count = torch.tensor([4, 2, 3])
    backend.extend(fed, together, count_B=count)
    last = torch.tensor([[11], [12], [13]])
    drafts = backend.draft(last, together, 4)
    for row in range(3):
        alone = backend.encode([SOURCE[row]], capacity=20, drafting=True)
        backend.extend(fed[row : row + 1, : count[row]], alone)
        single = backend.draft(last[row : row + 1], alone, 4)
        assert single.tokens_BK.tolist() == drafts.tokens_BK[row : row + 1].tolist()
        torch.testing.assert_close(single.prob_BKC[0], drafts.prob_BKC[row])


@torch.inference_mode()
def test_drafting_leaves_the_state_and_follows_select() -> None:
    target = tiny.seq2seq(dtype=torch.float64)
    drafter = build(target)
    backend = torch_calls(target, drafter=drafter)
    state = backend.encode(SOURCE, capacity=20, drafting=True)
    backend.extend(torch.tensor([[0, 4], [0, 5], [0, 6]]), state)
    last = torch.tensor([[7], [8], [9]])
    first = backend.draft(last, state, 6)
    again = backend.draft(last, state, 6)
    assert first.tokens_BK.tolist() == again.tokens_BK.tolist()
    state.select(torch.tensor([2, 0]))
    fewer = backend.draft(last[[2, 0]], state, 6)
    assert fewer.tokens_BK.tolist() == first.tokens_BK[[2, 0]].tolist()
    plain = backend.encode(SOURCE, capacity=20)
    backend.extend(torch.tensor([[0, 4], [0, 5], [0, 6]]), plain)
    torch.testing.assert_close(
        backend.extend(last, plain)[[2, 0]], backend.extend(last[[2, 0]], state)
    )


def test_sampled_drafts_follow_q() -> None:
    target = tiny.seq2seq()
    drafter = build(target, rank=0)
    backend = torch_calls(target, drafter=drafter)
    rows = 4000
    state = backend.encode([SOURCE[0]] * rows, capacity=8, drafting=True)
    last = torch.zeros(rows, 1, dtype=torch.long)
    backend.extend(last, state)
    uniform = torch.rand(rows, 1, generator=torch.Generator().manual_seed(3))
    draft = backend.draft(last, state, 1, temperature=0.7, uniform_BK=uniform)
    seen = (draft.tokens_BK[..., None] == draft.ids_BKC).float().mean(0)[0]
    torch.testing.assert_close(seen, draft.prob_BKC[0, 0], atol=0.03, rtol=0)


def test_known_tokens_are_kept() -> None:
    target = tiny.seq2seq()
    drafter = build(target)
    backend = torch_calls(target, drafter=drafter)
    state = backend.encode(SOURCE, capacity=20, drafting=True)
    start = torch.zeros(3, 1, dtype=torch.long)
    known = torch.full((3, 6), -1)
    free, sure = drafter.predict(start, state, known)
    assert bool(((sure > 0) & (sure <= 1)).all())
    known[:, 2] = (free[:, 2] + 1) % tiny.VOCABULARY
    fixed, _ = drafter.predict(start, state, known)
    assert fixed[:, 2].tolist() == known[:, 2].tolist()
    assert fixed[:, :2].tolist() == free[:, :2].tolist()  # causal: later slots do change


def test_shortlist_limits_the_draft() -> None:
    target = tiny.seq2seq()
    drafter = build(target, shortlist=4)
    drafter.set_shortlist(torch.tensor([9, 3, 12, 5]))
    backend = torch_calls(target, drafter=drafter)
    state = backend.encode(SOURCE, capacity=20, drafting=True)
    start = torch.zeros(3, 1, dtype=torch.long)
    backend.extend(start, state)
    draft = backend.draft(torch.full((3, 1), 5), state, 6)
    assert set(draft.tokens_BK.flatten().tolist()) <= {3, 5, 9, 12}
    assert draft.ids_BKC.shape[-1] == 4


def test_labels_outside_the_shortlist_are_ignored() -> None:
    label = torch.tensor([[9, 3, 4], [12, IGNORED, 22]])
    drafter = build(tiny.seq2seq(), shortlist=4)
    drafter.set_shortlist(torch.tensor([9, 3, 12, 5]))
    found = drafter.listed(label)
    assert found.tolist() == [[2, 0, IGNORED], [3, IGNORED, IGNORED]]
    assert build(tiny.seq2seq()).listed(label) is label, "without a shortlist every word counts"


def test_logits_are_those_of_the_shortlist() -> None:
    target = tiny.seq2seq(dtype=torch.float64)
    every = build(target)
    short = build(target, shortlist=4)
    short.load_state_dict(every.state_dict(), strict=False)
    short.set_shortlist(torch.tensor([9, 3, 12, 5]))
    hidden, state = torch.randn(2, 3, 16).double(), torch.randn(2, 3, 6).double()
    wanted = every.logits(hidden, state)[..., [3, 5, 9, 12]]
    torch.testing.assert_close(short.logits(hidden, state), wanted)


def test_saved_and_loaded(tmp_path: Path) -> None:
    target = tiny.seq2seq()
    drafter = build(target, shortlist=6)
    drafter.set_shortlist(torch.tensor([1, 4, 9, 16, 2, 3]))
    assert not any("target" in name for name in drafter.state_dict())
    drafter.save_pretrained(tmp_path / "drafter")
    loaded = load_drafter(tmp_path, target)
    assert loaded is not None
    assert loaded.target is target
    for name, value in drafter.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value)
    assert load_drafter(tmp_path / "elsewhere", target) is None


def test_a_drafter_of_another_model_is_refused(tmp_path: Path) -> None:
    build(tiny.seq2seq()).save_pretrained(tmp_path / "drafter")
    with pytest.raises(ModelError, match="hidden_size"):
        load_drafter(tmp_path, tiny.seq2seq(hidden_size=32))
    with pytest.raises(ModelError, match="made for another model"):
        load_drafter(tmp_path, tiny.language_model())


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"taps": [5]}, "taps"),
        ({"train_block": 99}, "train_block"),
        ({"decay": 0.0}, "decay"),
        ({"shortlist": 1000}, "shortlist"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"hidden_size": 8}, "hidden_size"),
        ({"norm": "middle"}, "norm"),
        ({"activation": "sofmax"}, "activation"),
        ({"dropout": -0.5}, "dropout"),
        ({"intermediate_size": 1 << 40}, "intermediate_size"),
        ({"layers": 0}, "layers"),
        ({"rank": -1}, "rank"),
        ({"reads": "minds"}, "reads"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        DrafterConfig.for_target(tiny.seq2seq().config, **changes)


def test_needs_a_target_and_an_open_state() -> None:
    target = tiny.seq2seq()
    loose = Drafter(DrafterConfig.for_target(target.config))
    with pytest.raises(ModelError, match="no target"):
        _ = loose.target
    backend = torch_calls(target, drafter=build(target))
    state = backend.encode(SOURCE, capacity=8)
    with pytest.raises(ModelError, match="not opened for drafting"):
        backend.draft(torch.zeros(3, 1, dtype=torch.long), state, 2)
    with pytest.raises(ModelError, match="no drafter"):
        torch_calls(target).encode(SOURCE, capacity=8, drafting=True)


def test_it_can_read_a_ctc_decoder() -> None:
    target = tiny.seq2seq(dtype=torch.float64)
    with pytest.raises(ModelError, match="has none"):
        build(target, reads="ctc")
    with pytest.raises(ConfigError, match="reads"):
        DrafterConfig.for_target(tiny.language_model().config, reads="ctc")
    ahead = Ctc(CtcConfig.for_target(target.config, layers=1)).to(torch.float64)
    ahead = ahead.bind(target).eval()
    drafter = build(target, ahead, reads="ctc")
    memory, keep = torch_calls(target)._encode(target, SOURCE)
    with torch.no_grad():
        read, real = drafter.read(memory, keep)
        states, slots = ahead.states(memory, keep)
        assert read is not None
        assert real is not None
        assert slots is not None
        torch.testing.assert_close(read, torch.cat([memory, states], dim=1))
        assert real.sum(1).tolist() == [4 * 3, 2 * 3, 3 * 3]
        logits = ahead.logits(states)[slots]
        torch.testing.assert_close(logits, ahead.slots(memory, keep)[slots])
    backend = torch_calls(target, drafter=drafter, ctc=ahead)
    together = backend.encode(SOURCE, capacity=9, drafting=True)
    start = torch.zeros(3, 1, dtype=torch.long)
    drafts = backend.draft(start, together, 4)
    for row in range(3):
        alone = backend.encode([SOURCE[row]], capacity=9, drafting=True)
        single = backend.draft(start[:1], alone, 4)
        torch.testing.assert_close(single.prob_BKC[0], drafts.prob_BKC[row])


@torch.inference_mode()
def test_the_newest_state_follows_rollback_and_select() -> None:
    """Prompts in chunks of unequal length, rows of different lengths, reordered rows."""
    target = tiny.seq2seq(dtype=torch.float64)
    drafter = build(target)
    backend = torch_calls(target, drafter=drafter)
    fed = torch.tensor([[0, 4, 5, 6], [0, 7, 8, 9], [0, 5, 5, 5]])
    state = backend.encode(SOURCE, capacity=20, drafting=True)
    backend.extend(fed[:, :2], state)
    backend.extend(fed[:, 2:], state, count_B=torch.tensor([2, 0, 1]))
    state.select(torch.tensor([1, 2, 0]))
    backend.extend(torch.full((3, 3), 8), state)
    state.rollback(torch.tensor([3, 3, 6]))
    found = drafter._newest(state)
    tokens = {0: [0, 7, 8], 1: [0, 5, 5], 2: [0, 4, 5, 6, 8, 8]}
    for row, source in enumerate([1, 2, 0]):
        alone = backend.encode([SOURCE[source]], capacity=20, drafting=True)
        backend.extend(torch.tensor([tokens[row]]), alone)
        torch.testing.assert_close(found[row : row + 1], drafter._newest(alone))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layers_may_start_as_copies_of_the_targets_last(norm: str) -> None:
    target = tiny.seq2seq(norm=norm)
    drafter = build(target, layers=1, copy_layers=True, taps=[0, 1])
    drafter.start_as_copies()
    theirs, own = target.decoder.blocks[-1].state_dict(), drafter.blocks[0].state_dict()
    assert theirs.keys() == own.keys()
    assert all(torch.equal(theirs[name], own[name]) for name in own)
    width = target.config.hidden_size
    near = drafter.inject[0].weight[:, :width]  # the tap that feeds the copied layer
    assert torch.equal(near, theirs["attention.qkv.weight"][width:])
    assert not drafter.inject[0].weight[:, width:].any()
    eye = torch.eye(width)
    assert torch.equal(drafter.from_last.weight, torch.cat([eye, torch.zeros_like(eye)], dim=1))


def test_a_copy_starts_with_the_keys_of_its_layer() -> None:
    """Equal for pre-norm layers; approximately equal for post-norm layers."""
    for norm in ("pre", "post"):
        target = tiny.seq2seq(norm=norm)
        with torch.no_grad():
            for block in target.decoder.blocks:
                block.attention_residual.norm.weight.uniform_(0.2, 3.0)
                block.feedforward_residual.norm.weight.fill_(2.5)
        drafter = build(target, layers=1, copy_layers=True, taps=[0, 1])
        drafter.start_as_copies()
        seen: list[torch.Tensor] = []
        fed = torch.tensor([[0, 4, 5, 6]])
        memory = target.encode(torch.tensor([[4, 5, 1]]), None)
        target.decode(fed, memory, None, seen)
        layer, width = target.decoder.blocks[-1], target.config.hidden_size
        wanted = layer.attention.qkv(layer.attention_residual.enter(seen[0]))[..., width:]
        found = drafter.inject[0](drafter._tapped(seen))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_layers_of_another_shape_cannot_be_copied() -> None:
    target = tiny.seq2seq()
    odd = build(target, copy_layers=True, intermediate_size=12)
    with pytest.raises(ConfigError, match=r"copy_layers: .* has another shape than in the target"):
        odd.start_as_copies()
    deep = build(target, copy_layers=True, layers=9)
    with pytest.raises(ConfigError, match="the drafter 9"):
        deep.start_as_copies()
