"""Cached decoding equals teacher forcing for all parts, batches, blocks and rollbacks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.torch.models import LanguageModel, Seq2Seq
from outrider.torch.nn.attention import kinds_with
from tests.helpers import tiny

PARTS = [
    {},
    {"norm": "post", "logits_bias": True},
    {"position": "rotary", "gated": True, "activation": "silu"},
    {"position": "learned", "num_key_value_heads": 1, "share_embeddings": False},
    {"position": "none", "tie_word_embeddings": False, "activation": "gelu"},
    {"position": "coordinate", "norm": "post"},
    {"position": "coordinate", "depth": "shared"},
    {"depth": "shared", "halting": {"bias": -1.0}},
    {"residual": "gru", "gate_bias": 0.0},
    {"residual": "reversible", "feedforward_chunks": 2},
    {"transition": "separable_conv", "transition_widths": [2, 4]},
    {"decoder_core": "gru", "pair_attention": True},
    {"decoder_core": "gru", "encoder_core": "lstm", "pondering": {"bias": -1.0, "steps": 4}},
    {"position": "alibi", "num_key_value_heads": 1},
    {"position": "relative", "num_key_value_heads": 1},
    {"position": "bucketed", "relative_buckets": 8, "relative_distance": 6, "rms_norm": True},
    {"position": "bucketed", "num_key_value_heads": 1, "head_dim": 6, "activation": "gelu_tanh"},
    {
        "position": "rotary",
        "head_dim": 6,
        "rope_theta": 50.0,
        "rope_scale": {"rope_type": "linear", "factor": 3.0},
        "norm_eps": 0.1,
        "embedding_norm": True,
    },
    {
        "position": "relative",
        "relative_codes": 4,
        "decoder_attention": {"kind": "sliding", "window": 3},
    },
    {
        "decoder_attention": {"kind": "sliding", "window": 3},
        "encoder_attention": {"kind": "sliding", "window": 2},
    },
    {"decoder_attention": [{"kind": "causal"}, {"kind": "sliding", "window": 2}]},
]
PARTS += [
    {
        "num_attention_heads": 4,
        "position": "relative" if kind in kinds_with("columns_ok") else "sinusoidal",
        "decoder_attention": {"kind": kind, **tiny.SMALL.get(kind, {})},
    }
    for kind in kinds_with("causal_ok")
]


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def sources(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(4, tiny.VOCABULARY, (len(lengths), max(lengths)))
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids * keep, keep


@torch.no_grad()
def teacher_forced(
    model: Seq2Seq, source: torch.Tensor, keep: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    return model(input_ids=source, attention_mask=keep.long(), decoder_input_ids=target).logits


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_steps_equal_teacher_forcing(parts: dict[str, object]) -> None:
    model = tiny.seq2seq(dtype=torch.float64, **parts)
    source, keep = sources([5, 2, 7])
    target = torch.randint(4, tiny.VOCABULARY, (3, 9))
    whole = teacher_forced(model, source, keep, target)
    with torch.no_grad():
        state = model.open(model.encode(source, keep), keep, capacity=9)
        steps = [model.extend(target[:, t : t + 1], state) for t in range(9)]
    close(torch.cat(steps, dim=1), whole)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_a_row_in_a_batch_equals_the_row_alone(parts: dict[str, object]) -> None:
    model = tiny.seq2seq(dtype=torch.float64, **parts)
    source, keep = sources([5, 2, 7])
    target = torch.randint(4, tiny.VOCABULARY, (3, 6))
    together = teacher_forced(model, source, keep, target)
    for row, length in enumerate([5, 2, 7]):
        one = slice(row, row + 1)
        alone = teacher_forced(model, source[one, :length], keep[one, :length], target[one])
        close(together[one], alone)


@pytest.mark.usefixtures("on_device")
@settings(max_examples=30)
@given(data=st.data(), parts=st.sampled_from(PARTS), seed=st.integers(0, 999))
def test_ragged_blocks_and_rollbacks(
    data: st.DataObject, parts: dict[str, object], seed: int
) -> None:
    """As in draft-and-verify, every row keeps a different part of each block."""
    model = tiny.seq2seq(seed=seed, dtype=torch.float64, **parts)
    source, keep = sources([3, 5])
    target = torch.randint(4, tiny.VOCABULARY, (2, 30))
    whole = teacher_forced(model, source, keep, target)
    with torch.no_grad():
        state = model.open(model.encode(source, keep), keep, capacity=30)
        for _ in range(4):
            lengths = state.length_B
            block = data.draw(st.integers(1, 5))
            index = lengths[:, None] + torch.arange(block)
            logits = model.extend(target.gather(1, index), state)
            close(logits, torch.stack([whole[row, index[row]] for row in range(2)]))
            kept = [data.draw(st.integers(0, block)) for _ in range(2)]
            state.rollback(lengths + torch.tensor(kept))


@pytest.mark.usefixtures("on_device")
def test_rows_can_be_dropped_reordered_and_copied() -> None:
    model = tiny.seq2seq(dtype=torch.float64)
    source, keep = sources([5, 2, 7])
    target = torch.randint(4, tiny.VOCABULARY, (3, 6))
    whole = teacher_forced(model, source, keep, target)
    with torch.no_grad():
        state = model.open(model.encode(source, keep), keep, capacity=9)
        model.extend(target[:, :3], state)
        rows = torch.tensor([2, 0])
        state.select(rows)
        close(model.extend(target[rows, 3:5], state), whole[rows, 3:5])
        rows = torch.tensor([0, 0, 2])
        state.select(torch.tensor([1, 1, 0]))
        close(model.extend(target[rows, 5:6], state), whole[rows, 5:6])


@pytest.mark.usefixtures("on_device")
def test_beams_share_one_source() -> None:
    model = tiny.seq2seq(dtype=torch.float64)
    source, keep = sources([5, 2])
    target = torch.randint(4, tiny.VOCABULARY, (6, 4))
    whole = teacher_forced(
        model, source.repeat_interleave(3, 0), keep.repeat_interleave(3, 0), target
    )
    with torch.no_grad():
        state = model.open(model.encode(source, keep), keep, capacity=9)
        state = state.repeat_rows(3)
        close(model.extend(target[:, :2], state), whole[:, :2])
        state.select(torch.tensor([4, 3, 3]))  # only beams of the second source remain
        assert state.sources[0].k_BHSK.shape[0] == 1
        rows = torch.tensor([4, 3, 3])
        close(model.extend(target[rows, 2:], state), whole[rows, 2:])


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize(
    "parts",
    [
        {},
        *({"position": position} for position in ("rotary", "relative", "alibi", "coordinate")),
        {"attention": {"kind": "sliding", "window": 5}},
        {"attention": {"kind": "sliding", "window": 5}, "position": "alibi"},
        {"memory": 3, "max_positions": 4, "position": "relative"},
    ],
    ids=str,
)
def test_language_model_prompts_of_different_length(parts: dict[str, object]) -> None:
    model: LanguageModel = tiny.language_model(dtype=torch.float64, **parts)
    tokens = torch.randint(4, tiny.VOCABULARY, (3, 120))
    with torch.no_grad():
        whole = model(input_ids=tokens).logits
        counts = torch.tensor([100, 1, 37])
        state = model.open(3, capacity=120)
        last = model.extend(tokens[:, :100], state, count_B=counts, last=True)
        close(last[:, 0], whole[torch.arange(3), counts - 1])
        for extra in range(3):
            at = (counts + extra)[:, None]
            close(model.extend(tokens.gather(1, at), state)[:, 0], whole[torch.arange(3), at[:, 0]])
        # A long continuation is added in blocks that fit a ring cache.
        at = state.length_B[:1] + torch.arange(17)
        state.select(torch.tensor([0]))
        close(model.extend(tokens[:1, at], state)[0], whole[0, at])


@pytest.mark.usefixtures("on_device")
def test_a_long_second_prompt_is_split_into_blocks() -> None:
    model = tiny.language_model(dtype=torch.float64, attention={"kind": "sliding", "window": 4})
    tokens = torch.randint(4, tiny.VOCABULARY, (2, 200))
    with torch.no_grad():
        whole = model(input_ids=tokens).logits
        state = model.open(2, capacity=200)
        model.extend(tokens[:, :10], state)
        close(model.extend(tokens[:, 10:], state), whole[:, 10:])


def test_decoding_state_of_a_window_does_not_grow_with_capacity() -> None:
    windowed = tiny.language_model(attention={"kind": "sliding", "window": 8})
    assert windowed.open(1, capacity=65_536).nbytes == windowed.open(1, capacity=1_000).nbytes


def test_rollback_is_limited_to_the_last_extend() -> None:
    model = tiny.language_model()
    state = model.open(1, capacity=10)
    model.extend(torch.tensor([[4, 5]]), state)
    model.extend(torch.tensor([[6]]), state)
    with pytest.raises(ValueError, match="only undo tokens of the last extend"):
        state.rollback(torch.tensor([1]))


def test_a_full_state_raises_an_error() -> None:
    state = tiny.language_model().open(1, capacity=2)
    with pytest.raises(ValueError, match="3 tokens do not fit a state opened for 2"):
        state.step(3, [3])


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_tensors_are_created_on_the_device_of_the_inputs(parts: dict[str, object]) -> None:
    """A tensor created without a device is on `meta` here, as it would be on the CPU, not a GPU."""
    model = tiny.seq2seq(dtype=torch.float64, **parts)
    source, keep = sources([5, 2, 7])
    target = torch.randint(4, tiny.VOCABULARY, (3, 9))
    count, back, rows = (torch.tensor(x) for x in ([4, 2, 3], [5, 3, 4], [1, 0]))

    def passes() -> list[torch.Tensor]:
        loss = model(input_ids=source, attention_mask=keep.long(), labels=target).loss
        found = [loss, *torch.autograd.grad(loss, model.tokens.weight)]
        with torch.no_grad():
            state = model.open(model.encode(source, keep), keep, capacity=9)
            found.append(model.extend(target[:, :4], state, count_B=count, last=True))
            found.append(model.extend(target[:, 4:6], state))
            state.rollback(back)
            state.select(rows)
            found.append(model.extend(target[rows, 6:7], state))
        return found

    at_home = passes()
    with torch.device("meta"):
        abroad = passes()
    assert all(map(torch.equal, at_home, abroad))
