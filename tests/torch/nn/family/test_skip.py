"""Skipping equals the masked dense computation, and rare tokens are not computed."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.config import build_config
from outrider.errors import ConfigError
from outrider.run_config import RunConfig
from outrider.torch.models import Seq2Seq, load_model
from outrider.torch.nn.family.skip import Router
from outrider.torch.nn.position import Positions
from outrider.torch.training.kinds import kind_of
from tests.helpers import tiny
from tests.helpers.letters import save_corpus
from tests.helpers.plain_layer import coordinates, layer, normed

RARE = 9
"""Tokens with smaller ids are frequent."""
PARTS = [
    {"position": "coordinate"},
    {"position": "sinusoidal", "norm": "post", "skip": {"below": 1.0, "layers": [1]}},
    {"position": "rotary", "num_key_value_heads": 1},
    {"position": "relative", "residual": "gru", "gate_bias": 0.0},
    {"position": "learned", "encoder_attention": {"kind": "full", "score": "slow"}},
    {
        "skip": {"below": 1.0, "layers": [0]},
        "encoder_attention": [{"kind": "full"}, {"kind": "sliding", "window": 2}],
    },
]


def close(a: Any, b: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def build(**parts: Any) -> Seq2Seq:
    model = tiny.seq2seq(dtype=torch.float64, **{"skip": {"below": 1.0}} | parts)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    assert model.router is not None
    common = torch.arange(tiny.VOCABULARY) < RARE
    model.router.set_counts(torch.where(common, tiny.VOCABULARY, tiny.VOCABULARY - 1))
    return model


def read(rows: list[int]) -> tuple[Tensor, Tensor]:
    keep = torch.arange(max(rows)) < torch.tensor(rows)[:, None]
    source = torch.randint(4, 15, keep.shape)
    source[:, 0], source[:, 1] = RARE - 1, RARE
    return source * keep, keep


def watch(model: Seq2Seq) -> list[Any]:
    """Add hooks, which make a stack compute all tokens under a mask."""
    attentions = [block.attention.attention for block in model.encoder.blocks]
    return [one.register_forward_pre_hook(lambda *_: None) for one in attentions]


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_equals_the_equations_and_their_gradient(norm: str) -> None:
    model = build(position="coordinate", norm=norm, hidden_size=16)
    rows = [8, 5]
    source, keep = read(rows)
    memory = model.encode(source, keep)
    found, wanted = [], []
    for row, length in enumerate(rows):
        ids = source[row, :length]
        x = model.tokens(ids) * 4 + coordinates(length, 16, 1)
        at = (ids < RARE).nonzero()[:, 0].tolist()
        assert 0 < len(at) < length
        keep_TT = (ids < RARE).expand(length, length)
        for n, block in enumerate(model.encoder.blocks):
            told = x + coordinates(length, 16, n + 1) if n else x
            x = x.index_copy(0, torch.tensor(at), layer(block, told, at, keep_TT))
        wanted.append(x if model.encoder.norm is None else normed(model.encoder.norm, x))
        found.append(memory[row, :length])
    close(torch.cat(found), torch.cat(wanted), 1e-10)
    weights = [model.tokens.weight, *model.encoder.parameters()]
    dice = torch.randn(sum(rows), 16, dtype=torch.float64)
    one, other = (
        torch.autograd.grad((torch.cat(y) * dice).sum(), weights) for y in (found, wanted)
    )
    close(one, other, 1e-10)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_packing_equals_masking(parts: dict[str, Any]) -> None:
    model = build(**parts)
    source, keep = read([9, 4, 7])
    inputs = {"input_ids": source, "attention_mask": keep.long(), "labels": source}
    results = []
    for packed in (True, False):
        hooks = [] if packed else watch(model)
        out = model(**inputs)
        gradients = torch.autograd.grad(out.loss, list(model.parameters()), allow_unused=True)
        results.append((out.logits.detach(), gradients))
        for hook in hooks:
            hook.remove()
    close(*results)


@torch.no_grad()
def test_a_skipped_token_passes_through_and_is_not_a_key() -> None:
    model = build(position="sinusoidal", norm="post")
    source, _ = read([7])
    source[0, 3] = RARE + 2
    memory = model.encode(source)
    x = model.tokens(source) * 4
    x = model.encoder_position(x, Positions.upto(7, x.device))
    close(memory[0, 3], x[0, 3])
    other = source.clone()
    other[0, 3] = RARE + 3
    again = model.encode(other)
    same = torch.arange(7) != 3
    close(again[0, same], memory[0, same])
    assert (again[0, 3] - memory[0, 3]).abs().max() > 1e-3, "the decoder still reads it"


@pytest.mark.usefixtures("on_device")
@torch.no_grad()
def test_a_row_alone_equals_the_row_in_a_batch() -> None:
    model = build(position="rotary")
    rows = [5, 2, 7]
    source, keep = read(rows)
    source[1] = RARE + 1  # no active tokens
    together = model.encode(source, keep)
    for row, length in enumerate(rows):
        close(together[row, :length], model.encode(source[row : row + 1, :length])[0])


def test_half_of_the_tokens_is_half_of_the_work() -> None:
    model = build(position="rotary", skip={"below": 1.0, "layers": [1]})
    places: list[int] = []
    for block in model.encoder.blocks:
        block.feedforward.register_forward_pre_hook(lambda _, x: places.append(x[0].shape[1]))
    source = torch.tensor([[4, RARE] * 8, [RARE, 5] * 8])
    model.encode(source)
    assert places == [16, 8]
    places.clear()
    model.encode(torch.full_like(source, RARE))
    assert places == [16], "a layer without tokens does not run"


def test_the_threshold_is_a_share_of_the_vocabulary() -> None:
    router = Router(40, below=0.1)
    ids = torch.tensor([[0, 1, 2, 3]])
    assert router(ids, None).all(), "nothing is rare before it was counted"
    router.set_counts(torch.tensor([3, 4, 5, 0] + [9] * 36))
    assert router(ids, None).tolist() == [[False, True, True, False]]
    keep = torch.tensor([[True, True, False, True]])
    assert router(ids, keep).tolist() == [[False, True, False, False]]


def test_counts_come_from_the_training_sources_and_are_saved(tmp_path: Path) -> None:
    prepared = save_corpus(tmp_path, lines=60, valid_rows=4)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    model = {"type": "seq2seq", "encoder_layers": 1, "decoder_layers": 1, **sizes}
    values = {
        "name": "skipping",
        "folder": str(tmp_path / "run"),
        "attribution": "Made up.",
        "data": {"folder": str(tmp_path / "prepared")},
        "model": {**model, "skip": {"below": 0.5}},
    }
    built = kind_of(build_config(RunConfig, values)).build(prepared)
    counts: Counter[int] = Counter()
    reader = prepared.reader("train")
    for block in range(len(reader.block_rows)):
        counts.update(reader.ids(block, "source_ids").flat.tolist())
    wanted = [counts[token] for token in range(prepared.tokenizer.vocab_size)]
    rows = int(reader.block_rows.sum())
    wanted[prepared.tokenizer.eos_id] += rows  # every source ends with it
    assert built.router.count_V.tolist() == wanted
    assert 0 < sum(n < 0.5 * len(wanted) for n in wanted) < len(wanted)
    built.save_pretrained(tmp_path / "model")
    assert load_model(tmp_path / "model").router.count_V.tolist() == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"skip": {}}, r"skip\.below: is required"),
        ({"skip": {"below": -1}}, r"skip\.below: got -1"),
        ({"skip": {"below": 1, "layers": [0, 2]}}, r"skip\.layers: got \[0, 2\], expected .* 1"),
        (
            {"encoder_attention": {"kind": "sliding"}},
            "encoder_attention: layer 0 depends on distances.*use kind full",
        ),
        ({"encoder_attention": {"kind": "full", "score": "fast"}}, "and not score fast"),
        ({"depth": "shared"}, "skip: needs depth: stacked"),
        ({"position_correlation": 3}, "position_correlation: needs neighbours"),
    ],
    ids=str,
)
def test_unsupported_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny.seq2seq(**{"skip": {"below": 1.0}} | changes)
