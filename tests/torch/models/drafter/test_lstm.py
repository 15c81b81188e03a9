"""The LSTM drafter and its step allocation."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.decoding import DecodeConfig, Request, decode
from outrider.decoding.statistics import Statistics
from outrider.errors import ConfigError
from outrider.torch.models import Drafter, DrafterConfig, LanguageModel, Seq2Seq, load_drafter
from outrider.torch.models.drafter import TrainingSlots
from outrider.torch.models.drafter.model import _table
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.kinds import drafter as module
from outrider.torch.training.kinds.drafter import DrafterObjective, count_rounds
from tests.helpers import tiny
from tests.helpers.tensor_calls import torch_calls

SOURCE = [[4, 5, 6, 1], [7, 1], [8, 9, 1]]
MAKERS = {"seq2seq": tiny.seq2seq, "language_model": tiny.language_model}
EOS = 1


def build(target: Seq2Seq | LanguageModel, **changes: Any) -> Drafter:
    options = {"core": "lstm", "dropout": 0.0, "candidates": 5, "block": 12, "train_block": 4}
    torch.manual_seed(7)
    drafter = Drafter(DrafterConfig.for_target(target.config, **options | changes))
    with torch.no_grad():  # zeros would hide errors
        for weight in (drafter.bias, drafter.mask, drafter.slot.weight):
            weight.normal_()
        if drafter.allocation is not None:
            drafter.allocation.vote_E.normal_()
            drafter.allocation.length_D.normal_(std=0.1)
    return drafter.to(target.dtype).bind(target).eval()


def fed(rows: int = 3) -> Tensor:
    return torch.randint(4, 23, (rows, 9), generator=torch.Generator().manual_seed(1))


def opened(target: Seq2Seq | LanguageModel, drafter: Drafter, prefix: int) -> Any:
    """A decoding state with `prefix` tokens, after one rollback."""
    backend = torch_calls(target, drafter=drafter)
    source = SOURCE if isinstance(target, Seq2Seq) else [[]] * 3
    state = backend.encode(source, capacity=24, drafting=True)
    backend.extend(fed()[:, : prefix + 2], state)
    state.rollback(torch.full((3,), prefix))
    return backend, state


def seen_states(target: Seq2Seq | LanguageModel) -> tuple[list[Tensor], Any, Any]:
    seen: list[Tensor] = []
    if isinstance(target, Seq2Seq):
        memory, keep = torch_calls(target)._encode(target, SOURCE)
        target.decode(fed(), memory, keep, seen)
        return seen, memory, keep
    target.hidden(fed(), seen)
    return seen, None, None


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("prefix", [0, 1, 4])
@pytest.mark.parametrize("options", [{}, {"layers": 2, "rank": 6}], ids=str)
def test_decoding_equals_training(kind: str, prefix: int, options: dict[str, int]) -> None:
    """The drafted block is trained between two other blocks."""
    target = MAKERS[kind](dtype=torch.float64)
    drafter = build(target, **options)
    backend, state = opened(target, drafter, prefix)
    draft = backend.draft(fed()[:, prefix : prefix + 1], state, 5)

    index = torch.cat([torch.arange(3), torch.arange(5), torch.arange(3)])
    anchor = torch.tensor([2] * 3 + [prefix] * 5 + [3] * 3).expand(3, -1)
    block = torch.tensor([0] * 3 + [1] * 5 + [2] * 3)
    layout = TrainingSlots(anchor, index, block, (index == 0).expand(3, -1))
    with torch.no_grad():
        seen, memory, keep = seen_states(target)
        hidden = drafter.train_blocks(seen, fed(), layout, memory, keep)[:, 3:8]
        logits = base = drafter.logits(hidden)
        if drafter.config.rank:
            before = torch.cat([fed()[:, prefix : prefix + 1], draft.tokens_BK[:, :-1]], dim=1)
            logits = drafter.logits(hidden, drafter.run_state(hidden, before))
    torch.testing.assert_close(draft.ids_BKC, base.topk(5).indices)
    wanted = logits.gather(-1, draft.ids_BKC).softmax(-1).float()
    torch.testing.assert_close(draft.prob_BKC, wanted, atol=1e-6, rtol=0)


@torch.no_grad()
def test_two_slots_equal_the_equations() -> None:
    """A post-norm layer in plain products; the second slot is masked."""
    target = tiny.marian_like(dtype=torch.float64)
    drafter = build(target)
    backend, state = opened(target, drafter, 2)
    draft = backend.draft(fed()[:, 2:3], state, 2)

    seen, memory, keep = seen_states(target)
    block, width = drafter.blocks[0], 16
    last = torch.cat([norm(seen[tap][0, 1]) for tap, norm in enumerate(drafter.state_norms)])
    cell = drafter.from_last(last)
    assert drafter.allocation is not None
    steps = drafter.allocation(memory[:1], keep[:1]).at(torch.tensor([[2, 3]]))[0]
    lstm: Any = block.attention
    h, c = torch.tanh(cell), cell
    for slot in range(2):
        angle = (2 + slot) * 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        token = target.tokens.weight[fed()[0, 2]] * math.sqrt(width)
        x = (drafter.mask if slot else token) + drafter.slot.weight[slot] + steps[slot]
        x = x + torch.cat([angle.sin(), angle.cos()])
        gates = lstm.lstm.weight_ih_l0 @ x + lstm.lstm.weight_hh_l0 @ h
        i, f, g, o = (gates + lstm.lstm.bias_ih_l0 + lstm.lstm.bias_hh_l0).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        x = block.attention_residual.norm(x + lstm.out(h))
        source = block.cross.source(memory[:1], None)  # type: ignore[union-attr]
        looked = block.cross(x[None, None], source)[0, 0]  # type: ignore[misc]
        x = block.cross_residual.norm(x + looked)  # type: ignore[union-attr]
        x = drafter.norm(block.feedforward_residual.norm(x + block.feedforward(x[None])[0]))
        scores = target.tokens.weight @ x + drafter.bias + target.logits_bias
        best = scores.topk(5)
        assert draft.ids_BKC[0, slot].tolist() == best.indices.tolist()
        wanted = best.values.softmax(-1).float()
        torch.testing.assert_close(draft.prob_BKC[0, slot], wanted, atol=1e-6, rtol=0)
        assert draft.tokens_BK[0, slot] == best.indices[0], "no guess changes the next one"


def test_the_sequential_term_is_optional() -> None:
    config = tiny.seq2seq().config
    assert DrafterConfig.for_target(config, core="lstm").rank == 0
    assert DrafterConfig.for_target(config, core="lstm", rank=128).rank == 128
    assert DrafterConfig.for_target(config).rank == 128


def test_rows_are_independent() -> None:
    target = tiny.seq2seq(dtype=torch.float64)
    backend = torch_calls(target, drafter=build(target))
    together = backend.encode(SOURCE, capacity=20, drafting=True)
    tokens, count = fed()[:, :4], torch.tensor([4, 2, 3])
    backend.extend(tokens, together, count_B=count)
    last = torch.tensor([[11], [12], [13]])
    drafts = backend.draft(last, together, 4)
    for row in range(3):
        alone = backend.encode([SOURCE[row]], capacity=20, drafting=True)
        backend.extend(tokens[row : row + 1, : count[row]], alone)
        single = backend.draft(last[row : row + 1], alone, 4)
        torch.testing.assert_close(single.prob_BKC[0], drafts.prob_BKC[row])


@torch.inference_mode()
def test_drafting_leaves_the_state_and_follows_select_and_fan() -> None:
    target = tiny.seq2seq(dtype=torch.float64)
    backend, state = opened(target, build(target), 2)
    last = torch.tensor([[7], [8], [9]])
    first = backend.draft(last, state, 6)
    torch.testing.assert_close(backend.draft(last, state, 6).prob_BKC, first.prob_BKC)
    state.select(torch.tensor([2, 0]))
    fewer = backend.draft(last[[2, 0]], state, 6)
    torch.testing.assert_close(fewer.prob_BKC, first.prob_BKC[[2, 0]])
    fanned = backend.draft(last[[2, 2, 0, 0]], state.repeat_rows(2), 6)
    torch.testing.assert_close(fanned.prob_BKC, first.prob_BKC[[2, 2, 0, 0]])


def test_the_state_does_not_grow_with_the_text() -> None:
    target = tiny.seq2seq()
    backend = torch_calls(target, drafter=build(target))
    plain = backend.encode(SOURCE, capacity=5000)
    long = backend.encode(SOURCE, capacity=5000, drafting=True).nbytes - plain.nbytes
    short = backend.encode(SOURCE, capacity=50, drafting=True)
    assert long == short.nbytes - backend.encode(SOURCE, capacity=50).nbytes > 0


def test_known_tokens_are_kept_and_the_text_ends_with_its_steps() -> None:
    target = tiny.seq2seq()
    drafter = build(target)
    assert drafter.allocation is not None
    with torch.no_grad():
        drafter.bias[EOS] = -50.0  # no slot predicts EOS
        drafter.allocation.length_D.zero_()
        drafter.allocation.vote_E.zero_()
    backend = torch_calls(target, drafter=drafter)
    state = backend.encode(SOURCE, capacity=20, drafting=True)
    table = _table(state)
    assert table is not None
    ends = table.end_B.tolist()
    assert ends[0] > ends[2] > ends[1], "longer sources, longer texts"
    start, known = torch.zeros(3, 1, dtype=torch.long), torch.full((3, 14), -1)
    free, sure = drafter.predict(start, state, known)
    for row, end in enumerate(ends):
        assert EOS not in free[row, :end].tolist()
        assert set(free[row, end:].tolist()) == {EOS}
        assert bool((sure[row, end:] == 1).all())
    known[:, 2] = (free[:, 2] + 1) % tiny.VOCABULARY
    known[:, 13] = 9
    fixed, _ = drafter.predict(start, state, known)
    assert fixed[:, 2].tolist() == known[:, 2].tolist()
    assert fixed[:, :2].tolist() == free[:, :2].tolist(), "nothing looks ahead"
    assert fixed[:, 13].tolist() == [9, 9, 9]


def test_parallel_mode_uses_it() -> None:
    target = tiny.seq2seq()
    backend = torch_calls(target, drafter=build(target))
    rows = [Request(source=source, max_new_tokens=10) for source in SOURCE]
    for changes in ({}, {"iterations": 2}, {"candidates": 3}):
        config = DecodeConfig(mode="parallel", decoder="drafter", suppress=(0,), **changes)
        together = decode(backend, rows, config)
        alone = [decode(backend, [row], config)[0] for row in rows]
        assert [one[0].tokens for one in together] == [one[0].tokens for one in alone]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("core", ["attention", "gru"])
def test_tandem_equals_greedy_and_gamma_mixes(kind: str, core: str) -> None:
    target = MAKERS[kind](seed=3, **{"decoder_core" if kind == "seq2seq" else "core": core})
    with torch.no_grad():
        for name, weight in target.named_parameters():
            if weight.dim() > 1 and "tokens" not in name:
                weight.mul_(3.0)  # with plain random weights every text repeats one token
    backend = torch_calls(target, drafter=build(target))
    sources = SOURCE if kind == "seq2seq" else [[]]
    rows = [Request(source=source, max_new_tokens=40) for source in sources]
    plain = decode(backend, rows, DecodeConfig(suppress=(0, EOS)))
    found: dict[float, Any] = {}
    for gamma in (0.0, 1.0):
        stats = Statistics()
        config = DecodeConfig(mode="tandem", draft_tokens=4, suppress=(0, EOS), gamma=gamma)
        found[gamma] = decode(backend, rows, config, stats=stats), stats
    assert [h.tokens for (h,) in found[0.0][0]] == [h.tokens for (h,) in plain]
    assert found[1.0][1].tokens_per_round > found[0.0][1].tokens_per_round
    config = DecodeConfig(
        mode="tandem", draft_tokens=4, strategy="sample", gamma=0.5, suppress=(0, EOS)
    )
    assert all(len(h.tokens) == 40 for (h,) in decode(backend, rows, config))


def test_saved_and_loaded(tmp_path: Path) -> None:
    target = tiny.seq2seq()
    drafter = build(target)
    drafter.save_pretrained(tmp_path / "drafter")
    loaded = load_drafter(tmp_path, target)
    assert loaded is not None
    assert (loaded.config.core, loaded.config.rank) == ("lstm", 0)
    start = torch.zeros(3, 1, dtype=torch.long)
    drafts = []
    for one in (drafter, loaded):
        backend = torch_calls(target, drafter=one)
        drafts.append(backend.draft(start, backend.encode(SOURCE, capacity=9, drafting=True), 5))
    torch.testing.assert_close(drafts[0].prob_BKC, drafts[1].prob_BKC)


@pytest.mark.parametrize(
    ("changes", "key"), [({"core": "lstn"}, "core"), ({"reads": "ctc"}, "reads")]
)
def test_wrong_settings_are_named(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}:"):
        build(tiny.seq2seq(), **changes)


def batch(kind: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    rows = [torch.randint(4, 23, (n,), generator=generator).tolist() for n in (6, 3, 1)]
    if kind == "language_model":
        labels = torch.tensor([[IGNORED, *row, *[IGNORED] * (7 - len(row))] for row in rows])
        inputs = labels.masked_fill(labels == IGNORED, 0)
        inputs[:, 0] = 3
        return {"input_ids": inputs, "labels": labels}
    labels = torch.tensor([[*row, EOS, *[IGNORED] * (7 - len(row))] for row in rows])
    source = torch.tensor([[4, 5, 6, 1], [7, 1, 0, 0], [8, 9, 1, 0]])
    return {"input_ids": source, "attention_mask": (source != 0).long(), "labels": labels}


@pytest.mark.parametrize("kind", MAKERS)
def test_all_weights_of_the_drafter_and_no_others_are_trained(kind: str) -> None:
    target = MAKERS[kind]().requires_grad_(False)
    drafter = build(target, layers=2).train()
    before = {name: one.clone() for name, one in drafter.state_dict().items()}
    frozen = {name: one.clone() for name, one in target.state_dict().items()}
    optimizer = torch.optim.Adam(drafter.parameters(), lr=0.01)
    losses = []
    for _ in range(80):
        loss = DrafterObjective().loss(drafter, batch(kind), divisor=13.0, smoothing=0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / (3 if kind == "seq2seq" else 2)
    for name, one in target.state_dict().items():
        assert torch.equal(one, frozen[name]), name
    still = {name for name, one in drafter.state_dict().items() if torch.equal(one, before[name])}
    assert {name for name in still if not name.endswith("bias")} == set()
    tokens, rounds = count_rounds(drafter.eval(), batch(kind))
    assert tokens / rounds > (3 if kind == "seq2seq" else 1.5)
    if drafter.allocation is not None:
        memory, keep = torch_calls(target)._encode(target, SOURCE)  # type: ignore[arg-type]
        length = drafter.allocation.log_length(memory, keep).exp()
        torch.testing.assert_close(length, torch.tensor([7.0, 4.0, 2.0]), rtol=0.25, atol=0)


@pytest.mark.parametrize("training", [True, False])
def test_the_length_loss_is_added_in_training_only(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny.seq2seq(dtype=torch.float64)
    drafter = build(target, whole=False).train(training)
    assert drafter.allocation is not None
    memory, keep = torch_calls(target)._encode(target, SOURCE)
    guess = drafter.allocation.log_length(memory, keep)
    found = []
    for _ in range(2):
        torch.manual_seed(1)  # the same anchors
        found.append(DrafterObjective().loss(drafter, batch("seq2seq"), divisor=26.0, smoothing=0))
        monkeypatch.setattr(module, "_log_length", lambda _: guess)  # a perfect guess
    wrong = guess - torch.tensor([7.0, 4.0, 2.0]).log()
    wanted = wrong.square().mean() / 2 if training else 0 * found[0]
    torch.testing.assert_close(found[0] - found[1], wanted, rtol=1e-5, atol=0)
