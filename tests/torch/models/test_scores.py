"""Models with other scores, positional correlation and the positional MLP: decode, save, draft."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.decoding import DecodeConfig, Request
from outrider.errors import ConfigError
from outrider.torch.backend import TorchBackend
from outrider.torch.models import Drafter, DrafterConfig, LanguageModel, LanguageModelConfig
from outrider.torch.nn.position import Positions
from tests.helpers import tiny
from tests.helpers.loops import greedy, tandem


def scored(score: str, normaliser: str = "softmax", **more: Any) -> dict[str, Any]:
    attention = {"kind": "causal", "score": score, "normaliser": normaliser}
    return {"attention": attention | more}


MODELS: dict[str, dict[str, Any]] = {
    "dot": scored("dot"),
    "additive": scored("additive"),
    "slow": {**scored("slow"), "num_key_value_heads": 1},
    "fast": {**scored("fast", score_positions=12), "position": "none"},
    "tanh_exp": scored("dot", "tanh_exp"),
    "additive_window": {**scored("additive", kind="sliding", window=3), "position": "alibi"},
    "slow_relative": {**scored("slow", "tanh_exp"), "position": "relative"},
    "gate": scored("scaled_dot", head_gate="glu"),
    "correlation": {"position_correlation": 4, "position": "rotary"},
    "position_mlp": {"position_mlp": 4, "attention": {"kind": "sliding", "window": 5}},
}


def build(name: str, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> LanguageModel:
    """Build a model whose new parts have non-initial weights."""
    model = tiny.language_model(dtype=dtype, seed=seed, **MODELS[name])
    new = ("scored", "correlation", "position_mlp", "gate")
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if any(part in key for part in new):
                weight.add_(torch.randn_like(weight), alpha=0.3)
    return model


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_ragged_prompts_blocks_and_rollbacks_equal_the_whole_pass(name: str) -> None:
    model = build(name)
    tokens = torch.randint(4, tiny.VOCABULARY, (3, 130))
    whole = model(input_ids=tokens).logits
    counts = torch.tensor([100, 1, 37])
    state = model.open(3, capacity=130)
    last = model.extend(tokens[:, :100], state, count_B=counts, last=True)
    close(last[:, 0], whole[torch.arange(3), counts - 1])
    dice = torch.Generator().manual_seed(0)
    for block in (1, 3, 6, 1, 2):
        start = state.length_B
        at = start[:, None] + torch.arange(block)
        logits = model.extend(tokens.gather(1, at), state)
        close(logits, torch.stack([whole[row, at[row]] for row in range(3)]))
        state.rollback(start + torch.randint(0, block + 1, (3,), generator=dice))
    rows = torch.tensor([2, 0, 0])
    state.select(rows)
    at = state.length_B[:, None] + torch.arange(4)
    close(
        model.extend(tokens[rows].gather(1, at), state),
        torch.stack([whole[row, places] for row, places in zip(rows, at, strict=True)]),
    )


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_saving_and_loading_change_nothing(name: str, tmp_path: Path) -> None:
    model = build(name, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    again = LanguageModel.from_pretrained(tmp_path).eval()
    tokens = torch.randint(4, tiny.VOCABULARY, (2, 20))
    assert torch.equal(model(input_ids=tokens).logits, again(input_ids=tokens).logits)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=4)
@given(seed=st.integers(0, 2**16), rows=st.integers(1, 4), k=st.integers(1, 8))
def test_tandem_equals_greedy(name: str, seed: int, rows: int, k: int) -> None:
    model = build(name, dtype=torch.float32, seed=seed)
    config = DrafterConfig.for_target(model.config, rank=4, candidates=5, block=8, dropout=0.0)
    backend: Any = TorchBackend(model, drafter=Drafter(config))
    dice = torch.Generator().manual_seed(seed)
    prompts = [
        torch.randint(3, tiny.VOCABULARY, (n + 1,), generator=dice).tolist() for n in range(rows)
    ]
    requests = [Request(prompt=ids, max_new_tokens=5 + 4 * n) for n, ids in enumerate(prompts)]
    expected = greedy(backend, requests, DecodeConfig())
    assert tandem(backend, requests, DecodeConfig(mode="tandem", draft_tokens=k)) == expected


@pytest.mark.parametrize("name", MODELS)
def test_trains_in_mixed_precision(name: str) -> None:
    model = build(name, dtype=torch.float32).train()
    tokens = torch.randint(4, tiny.VOCABULARY, (2, 20))
    exact = model(input_ids=tokens, labels=tokens).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    torch.testing.assert_close(loss, exact, rtol=0.1, atol=0.1)
    loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())


SIDES = [
    {"position_correlation": 3},
    {"position_mlp": 3, "share_embeddings": False},
    {
        "encoder_attention": {"kind": "full", "score": "additive"},
        "decoder_attention": {"kind": "causal", "score": "fast"},
        "position": "alibi",
    },
]


@pytest.mark.parametrize("options", SIDES, ids=str)
@torch.no_grad()
def test_translators(options: dict[str, Any]) -> None:
    """Padding has no effect, beams share a source, and steps equal teacher forcing."""
    model = tiny.seq2seq(dtype=torch.float64, **options)
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.1)
    lengths = [5, 2, 7]
    source = torch.randint(4, tiny.VOCABULARY, (3, 7))
    keep = torch.arange(7) < torch.tensor(lengths)[:, None]
    target = torch.randint(4, tiny.VOCABULARY, (3, 9))
    whole = model(input_ids=source * keep, attention_mask=keep, decoder_input_ids=target).logits
    for row, n in enumerate(lengths):
        one = slice(row, row + 1)
        close(whole[one], model(input_ids=source[one, :n], decoder_input_ids=target[one]).logits)
    state = model.open(model.encode(source * keep, keep), keep, capacity=9)
    model.extend(target[:, :2], state)
    state = state.repeat_rows(2)
    rows = torch.tensor([0, 0, 1, 1, 2, 2])
    close(model.extend(target[rows, 2:5], state), whole[rows, 2:5])


# --- the positional MLP -------------------------------------------------------------------------


def test_the_positional_mlp_equals_its_equation() -> None:
    model = build("position_mlp")
    mlp = model.position_mlp
    tokens = torch.randint(4, tiny.VOCABULARY, (1, 9))
    positions = Positions.upto(9, torch.device("cpu"))
    x = model.tokens(tokens) * 4  # sqrt(hidden_size)
    z = model.decoder_position(x, positions)[0]
    expected = []
    for i in range(9):
        near = [z[i] @ z[i - d] / 4 if i >= d else torch.zeros(()).double() for d in range(4)]
        hidden = mlp.up.weight @ torch.stack(near) + mlp.up.bias
        bent = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
        expected.append(z[i] + mlp.down_DN @ bent)
    found = model.embed(model.tokens, model.decoder_position, tokens, positions)
    close(found[0], torch.stack(expected))


@pytest.mark.parametrize("options", [{"position_mlp": 4}, {"position_correlation": 3}], ids=str)
@torch.no_grad()
def test_new_parts_start_without_effect(options: dict[str, int]) -> None:
    model, plain = tiny.language_model(**options), tiny.language_model()
    plain.load_state_dict(model.state_dict(), strict=False)
    tokens = torch.randint(4, tiny.VOCABULARY, (2, 12))
    assert torch.equal(model(input_ids=tokens).logits, plain(input_ids=tokens).logits)


def test_the_state_is_counted_and_stays_small() -> None:
    model = build("position_mlp")
    states = [model.open(2, capacity=capacity) for capacity in (1_000, 65_536)]
    for state in states:
        model.extend(torch.full((2, 3), 5), state)
    assert states[0].nbytes == states[1].nbytes
    assert states[0].ring is not None
    assert states[0].nbytes > sum(cache.nbytes for cache in states[0].caches)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position_mlp": -1}, r"position_mlp: got -1, expected 0 to"),
        ({"position_correlation": 1000}, r"position_correlation: got 1000, expected 0 to"),
        ({"memory": 8, "position_mlp": 2}, r"position_mlp: does not cover a memory"),
        ({"memory": 8, **scored("slow")}, r"attention\.score: memory needs"),
        ({"memory": 8, **scored("dot", "tanh_exp")}, r"attention\.normaliser: memory needs"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LanguageModelConfig(hidden_size=16, num_attention_heads=2, position="rotary", **options)
