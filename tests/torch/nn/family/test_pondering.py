"""Recurrent cells with adaptive computation time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.decoding import DecodeConfig, Request, decode
from outrider.errors import ConfigError
from outrider.torch.backend import TorchBackend
from outrider.torch.models import Drafter, DrafterConfig, load_model
from outrider.torch.nn.cache import SLACK, Step
from outrider.torch.nn.family.halting import PonderingBothWays, PonderingConfig, PonderingGru
from outrider.torch.nn.position import Positions
from outrider.torch.training.objective import add_penalty
from tests.helpers import tiny

CPU = torch.device("cpu")
PONDERING: dict[str, Any] = {"bias": -1.0, "steps": 4}


def stirred(layer: Any) -> Any:
    """A layer whose tokens halt after different steps."""
    for name, weight in layer.named_parameters():
        if "halting" in name:
            torch.nn.init.normal_(weight, std=8.0 if name.endswith("weight_D") else 1.0)
    return layer


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def cell(weights: dict[str, Tensor], token: Tensor, s: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """S of the paper, gate by gate: a GRU of (h,), or an LSTM of (h, c)."""
    given = weights["weight_ih"] @ token + weights["bias_ih"]
    known = weights["weight_hh"] @ s[0] + weights["bias_hh"]
    if len(s) == 1:
        (r, z, n), (r2, z2, n2) = given.chunk(3), known.chunk(3)
        r, z = sigmoid(r + r2), sigmoid(z + z2)
        return ((1 - z) * torch.tanh(n + r * n2) + z * s[0],)
    i, f, g, o = (given + known).chunk(4)
    c = sigmoid(f) * s[1] + sigmoid(i) * torch.tanh(g)
    return sigmoid(o) * torch.tanh(c), c


def equation(
    layer: Any, rnn: Any, halting: Any, x: Tensor, *, vectors: int, end: str = ""
) -> tuple[Tensor, Tensor, list[int]]:
    """Equations 4 to 14 of arXiv:1603.08983 for one row: states, sum of N + R, and N."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weights = {name: getattr(rnn, f"{name}_l0{end}") for name in names}
    config = layer.config
    state = tuple(torch.zeros(x.shape[1], dtype=x.dtype) for _ in range(vectors))
    shown, counts, cost = [], [], torch.zeros((), dtype=x.dtype)
    for token in x:
        states, chances = [], []
        while True:
            flag = torch.tensor([1.0 if not states else 0.0], dtype=x.dtype)
            state = cell(weights, torch.cat([token, flag]), state)
            states.append(state)
            chances.append(sigmoid(halting.weight_D @ state[0] + halting.bias))
            if (
                sum(float(p.detach()) for p in chances) >= config.threshold
                or len(states) == config.steps
            ):
                break
        n = len(states)
        remainder = 1 - sum(chances[: n - 1], torch.zeros((), dtype=x.dtype))
        p = [*chances[: n - 1], remainder]
        state = tuple(
            sum((p[k] * states[k][v] for k in range(n)), torch.zeros_like(token))
            for v in range(vectors)
        )
        shown.append(state[0])
        counts.append(n)
        cost = cost + n + remainder
    return torch.stack(shown), cost, counts


def same_with_gradient(fast: list[Tensor], slow: list[Tensor], inputs: list[Tensor]) -> None:
    torch.testing.assert_close(fast, slow)
    weights = [torch.randn_like(one) for one in slow]
    ours, theirs = (
        torch.autograd.grad(
            sum((one * weight).sum() for one, weight in zip(parts, weights, strict=True)),
            inputs,
            materialize_grads=True,  # with one step, p has no effect
        )
        for parts in (fast, slow)
    )
    torch.testing.assert_close(ours, theirs)


@settings(max_examples=20)
@given(data=st.data())
def test_a_gru_and_its_cost_equal_the_equation(data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 999)))
    width, lengths = data.draw(st.integers(1, 5)), data.draw(st.lists(st.integers(1, 6), min_size=2,
                                                                      max_size=4))  # fmt: skip
    options = {"steps": data.draw(st.integers(1, 5)), "threshold": data.draw(st.floats(0.2, 1.0))}
    layer = stirred(PonderingGru(width, PonderingConfig(ponder=0.5, **options)).double())
    longest = max(lengths)
    x = torch.randn(len(lengths), longest, width, dtype=torch.float64, requires_grad=True)
    keep = torch.arange(longest) < torch.tensor(lengths)[:, None]
    found = layer(x, Positions.upto(longest, CPU), keep)
    price = layer.penalty()
    assert price is not None
    assert layer.penalty() is None, "it is paid once"
    fast, slow, cost, counts = [], [], torch.zeros((), dtype=torch.float64), []
    for row, length in enumerate(lengths):
        shown, more, steps = equation(layer, layer.gru, layer.halting, x[row, :length], vectors=1)
        fast.append(found[row, :length])
        slow.append(shown @ layer.out.weight.T + layer.out.bias)
        cost, counts = cost + more, counts + steps
    fast, slow = [*fast, price], [*slow, 0.5 * cost / sum(lengths)]
    same_with_gradient(fast, slow, [x, *layer.parameters()])
    assert layer.pondered is not None
    assert layer.pondered.steps_BT[keep].tolist() == counts
    assert not layer.pondered.steps_BT[~keep].any()


@pytest.mark.parametrize("core", ["gru", "lstm"])
@pytest.mark.parametrize("seed", range(4))
def test_a_bidirectional_layer_equals_the_equation(core: str, seed: int) -> None:
    torch.manual_seed(seed)
    config, vectors = PonderingConfig(ponder=0.5, **PONDERING), {"gru": 1, "lstm": 2}[core]
    layer = stirred(PonderingBothWays(4, config, core=core).double())
    x = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True)
    keep = torch.arange(6) < torch.tensor([6, 3])[:, None]
    found = layer(x, Positions.upto(6, CPU), keep)
    fast, slow, cost, taken = [], [], torch.zeros((), dtype=torch.float64), []
    for row, length in enumerate([6, 3]):
        there, one, n = equation(layer, layer.states, layer.halting, x[row, :length],
                                 vectors=vectors)  # fmt: skip
        back, two, m = equation(layer, layer.states, layer.halting_back, x[row, :length].flip(0),
                                vectors=vectors, end="_reverse")  # fmt: skip
        both = torch.cat([there, back.flip(0)], 1)
        fast.append(found[row, :length])
        slow.append(both @ layer.out.weight.T + layer.out.bias)
        cost, taken = cost + one + two, taken + [a + b for a, b in zip(n, m[::-1], strict=True)]
    price = layer.penalty()
    same_with_gradient([*fast, price], [*slow, 0.5 * cost / 9], [x, *layer.parameters()])
    assert layer.pondered.steps_BT[keep].tolist() == taken
    assert len(set(taken)) > 1, "tokens differ"


@settings(max_examples=8)
@given(data=st.data(), prompt=st.sampled_from([1, 30, 80]))
@torch.no_grad()
def test_partly_rolled_back_blocks_equal_one_pass(data: st.DataObject, prompt: int) -> None:
    rows, total, width = 3, prompt + 100, 4
    torch.manual_seed(data.draw(st.integers(0, 99)))
    layer = stirred(PonderingGru(width, PonderingConfig(**PONDERING)).double())
    x = torch.randn(rows, total, width, dtype=torch.float64)
    whole = layer(x, Positions.upto(total, CPU))
    cache = layer.new_cache(rows, total + SLACK)
    lengths, block = [0] * rows, prompt
    for _ in range(5):
        first = not any(lengths)
        kept = [data.draw(st.integers(1 if first else 0, block)) for _ in range(rows)]
        step = Step(lengths, block, kept if first else [block] * rows, CPU)
        given_now = torch.randn(rows, block, width, dtype=torch.float64)  # rejected tokens
        for row, (n, more) in enumerate(zip(lengths, kept, strict=True)):
            given_now[row, :more] = x[row, n : n + more]
        out = layer.extend(given_now, cache, step)
        for row, (n, more) in enumerate(zip(lengths, kept, strict=True)):
            torch.testing.assert_close(out[row, :more], whole[row, n : n + more])
        lengths = [n + more for n, more in zip(lengths, kept, strict=True)]
        if data.draw(st.booleans()):
            order = data.draw(st.permutations(range(rows)))
            cache.select(torch.tensor(order), max(lengths))
            x, whole, lengths = x[order], whole[order], [lengths[row] for row in order]
        block = data.draw(st.integers(1, 14))


def test_one_step_equals_a_gru_with_the_flag_set() -> None:
    torch.manual_seed(0)
    layer = PonderingGru(4, PonderingConfig(steps=1)).double()
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    h, _ = layer.gru(torch.cat([x, torch.ones(2, 5, 1, dtype=torch.float64)], -1))
    torch.testing.assert_close(layer(x, Positions.upto(5, CPU)), layer.out(h))


def test_halted_rows_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    layer = stirred(PonderingGru(4, PonderingConfig(**PONDERING)))
    computed, cell_type = [], type(layer)._run_steps.__globals__["_Cell"]
    step = cell_type.step
    monkeypatch.setattr(
        cell_type,
        "step",
        lambda self, given, state: computed.append(len(state)) or step(self, given, state),
    )
    layer(torch.randn(8, 6, 4), Positions.upto(6, CPU))
    taken = layer.pondered.steps_BT
    assert sum(computed) == int(taken.sum()) < taken.numel() * 4
    assert taken.min() < taken.max()


CORES = [
    {"decoder_core": "gru"},
    {"encoder_core": "gru"},
    {"encoder_core": "lstm", "decoder_core": "gru", "norm": "post"},
    {"encoder_core": "lstm", "decoder_core": "ssru"},
    {"decoder_core": "gru", "transition": "separable_conv"},
]


@pytest.mark.parametrize("cores", CORES, ids=str)
@torch.no_grad()
def test_steps_equal_teacher_forcing_and_rows_are_independent(cores: dict[str, Any]) -> None:
    model = stirred(tiny.seq2seq(dtype=torch.float64, pondering=PONDERING, **cores))
    source = torch.randint(4, tiny.VOCABULARY, (3, 7))
    keep = torch.arange(7) < torch.tensor([5, 2, 7])[:, None]
    target = torch.randint(4, tiny.VOCABULARY, (3, 9))
    target[1, 4] = 0  # the padding token
    whole = model(input_ids=source, attention_mask=keep.long(), decoder_input_ids=target).logits
    state = model.open(model.encode(source, keep), keep, capacity=9)
    steps = [model.extend(target[:, :4], state)]
    steps += [model.extend(target[:, t : t + 1], state) for t in range(4, 9)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
    for row, length in enumerate([5, 2, 7]):
        one = slice(row, row + 1)
        alone = model(input_ids=source[one, :length], decoder_input_ids=target[one]).logits
        torch.testing.assert_close(alone, whole[one])


def test_tandem_equals_greedy() -> None:
    model = stirred(tiny.language_model(seed=3, core="gru", pondering=PONDERING))
    with torch.no_grad():  # with plain random weights every text repeats one token
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "tokens" not in name:
                weight.mul_(3.0)
    torch.manual_seed(0)
    drafter = Drafter(DrafterConfig.for_target(model.config, block=6, train_block=4, rank=6))
    backend = TorchBackend(model, drafter=drafter)
    rows = [
        Request(source=[], prompt=prompt, max_new_tokens=60) for prompt in ([5, 6], [7], [8, 9, 10])
    ]
    plain = decode(backend, rows, DecodeConfig(suppress=(0, 1)))
    drafted = decode(backend, rows, DecodeConfig(mode="tandem", draft_tokens=4, suppress=(0, 1)))
    assert [one[0].tokens for one in drafted] == [one[0].tokens for one in plain]
    assert len(set(plain[0][0].tokens)) > 2, "a text that says something"


@pytest.mark.parametrize("recompute", [False, True])
def test_the_loss_includes_the_cost_and_every_weight_is_trained(recompute: bool) -> None:
    ids = torch.randint(4, 23, (2, 6))
    found = []
    for ponder in (0.0, 0.5):
        options = {**PONDERING, "ponder": ponder}
        model = tiny.seq2seq(decoder_core="gru", encoder_core="lstm", pondering=options).train()
        for block in [*model.encoder.blocks, *model.decoder.blocks]:
            block.recompute = recompute
        loss = add_penalty(model(input_ids=ids, labels=ids).loss, model, 1.0)
        loss.backward()
        cells = [m for m in model.modules() if isinstance(m, PonderingGru | PonderingBothWays)]
        assert len(cells) == 4
        found.append((float(loss.detach()), sum(float(c.pondered.cost()) for c in cells)))
        assert all(w.grad is not None and bool(w.grad.isfinite().all()) for w in model.parameters())
    assert found[0][1] == found[1][1] > 4
    assert found[1][0] - found[0][0] == pytest.approx(0.5 * found[1][1], rel=1e-4)


def test_a_checkpointed_layer_has_the_same_gradient() -> None:
    ids, grads = torch.randint(4, 23, (2, 6)), []
    for recompute in (False, True):
        options = {**PONDERING, "ponder": 0.5}
        model = tiny.language_model(core="gru", pondering=options, dtype=torch.float64).train()
        for block in model.decoder.blocks:
            block.recompute = recompute
        add_penalty(model(input_ids=ids, labels=ids).loss, model, 1.0).backward()
        grads.append([weight.grad for weight in model.parameters()])
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("cores", CORES[:4], ids=str)
def test_saved_and_loaded(cores: dict[str, Any], tmp_path: Path) -> None:
    model = stirred(tiny.seq2seq(pondering=PONDERING, **cores))
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    ids = torch.randint(4, 23, (2, 5))
    given = {"input_ids": ids, "decoder_input_ids": ids}
    torch.testing.assert_close(loaded(**given).logits, model(**given).logits)


def test_it_trains_under_autocast() -> None:
    model = tiny.language_model(core="gru", pondering=PONDERING).train()
    ids = torch.randint(4, 23, (2, 5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    plain = model.eval()(input_ids=ids, labels=ids).loss
    torch.testing.assert_close(loss, plain, rtol=0.05, atol=0)


@pytest.mark.parametrize(
    ("make", "changes", "said"),
    [
        (tiny.seq2seq, {}, "pondering: needs a cell .* set encoder_core or decoder_core to gru"),
        (tiny.language_model, {"core": "ssru"}, "pondering: needs a cell .* set core to gru"),
        (tiny.language_model, {"core": "gru", "depth": "shared"}, "pondering: depth: shared repe"),
        (tiny.language_model, {"core": "gru", "residual": "reversible"}, "pondering: .* residual:"),
        (tiny.language_model, {"core": "gru", "pondering": {"step": 3}}, "pondering.step: unknown"),
        (tiny.language_model, {"core": "gru", "pondering": {"steps": 0}}, "pondering.steps"),
    ],
)
def test_unsupported_options_are_refused(make: Any, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(**{"pondering": {}} | changes)
