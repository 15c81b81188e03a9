"""How a model represents positions: added codes, or scores that depend on the distance.

    codes     x_p + c_p              cos(c_i, c_j), mean over all i - j = d
    rotary    q, k rotated by p f    score of equal tokens at distance d over 0: mean cos(d f)
    vectors   q . (k + a_(i - j))    cos(a_d, a_0)
    biases    s(i, j) + b_h(i - j)   b_h(d), a line per head, for a zero query

Only the first layer is read; the others differ by their learnt weights at most.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outrider.errors import ConfigError, nearest
from outrider.torch.models import LanguageModel, LanguageModelConfig, Seq2Seq
from outrider.torch.nn.layer.heads import SelfAttention
from outrider.torch.nn.position import Positions, Rotary
from outrider.torch.nn.stack import Stack

CALCULATED = ("sinusoidal", "coordinate", "rotary", "alibi")
"""Kinds without weights, which can be shown without a model."""
LEARNED = ("learned", "relative", "distance", "bucketed")
LIKENESS, NEAR, TURNED, BIAS = (
    "how alike two codes are (cosine)",
    "how alike the vector of a distance is to that of 0 (cosine)",
    "score of two equal tokens, as a share of that at distance 0",
    "bias of the score",
)
WIDTH, HEADS = 128, 8


@dataclass(frozen=True)
class PositionMap:
    """How one part of a model represents positions."""

    part: str
    kind: str
    meaning: str
    """Meaning of the values by distance."""
    by_distance_HT: Tensor
    """A row per head, or one for all; a column per distance back, from 0."""
    codes_TD: Tensor | None = None
    """The codes added to the embeddings, if any."""


def calculated_positions(kind: str, length: int) -> list[PositionMap]:
    """Return the positions of a kind without weights, for a model of width 128 with 8 heads."""
    if kind in LEARNED:
        raise ConfigError("positions", f"{kind!r} is learned; give a model folder")
    if kind not in CALCULATED:
        kinds = [*CALCULATED, *LEARNED]
        hint = nearest(kind, kinds)
        message = f"{kind!r} is not a model folder or a kind{hint}; kinds are {', '.join(kinds)}"
        raise ConfigError("positions", message)
    config = LanguageModelConfig(
        vocab_size=4,  # the special tokens
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        intermediate_size=1,
        layers=1,
        position=kind,
    )
    return read_positions(LanguageModel(config), length)


@torch.no_grad()
def read_positions(model: Seq2Seq | LanguageModel, length: int) -> list[PositionMap]:
    """Return the positions of a model's encoder and decoder."""
    parts: list[tuple[str, nn.Module | None, Stack]] = []
    if isinstance(model, Seq2Seq) and model.pretrained is None:
        parts.append(("encoder", model.encoder_position, model.encoder))
    parts.append(("decoder", model.decoder_position, model.decoder))
    maps = [_map(name, model, code, stack, length) for name, code, stack in parts]
    if not (maps_with_positions := [m for m in maps if m is not None]):
        kind = model.config.position
        raise ConfigError("position", f"this model has {kind!r}: it has no positions to show")
    return maps_with_positions


def _map(
    name: str, model: Seq2Seq | LanguageModel, code: nn.Module | None, stack: Stack, length: int
) -> PositionMap | None:
    positions = Positions.upto(length, model.tokens.weight.device)
    kind = str(model.config.position)
    if code is not None:
        width = model.config.hidden_size
        codes_TD = code(model.tokens.weight.new_zeros(1, length, width), positions)[0].float().cpu()
        kind = "sinusoidal" if kind == "alibi" else kind  # of an encoder whose decoder has biases
        return PositionMap(name, kind, LIKENESS, _likeness(codes_TD), codes_TD)
    attention: nn.Module = stack.blocks[0].attention
    if stack.bias is not None:
        zeros_BHTK = model.tokens.weight.new_zeros(1, 1, length, model.config.head_width)
        bias_HTT = stack.bias.whole(zeros_BHTK)[0]
        return PositionMap(name, kind, BIAS, bias_HTT[:, -1].flip(-1).float().cpu())
    if not isinstance(attention, SelfAttention):
        return None  # recurrent layers need no positions
    if attention.rotary is not None:
        return PositionMap(name, kind, TURNED, _turned(attention.rotary, length))
    if attention.distances is not None:
        table = attention.distances
        back = torch.arange(min(length, table.farthest + 1)) + table.farthest * table.two_sided
        vectors_TK = table.table.weight[back].float().cpu()
        unit_TK = nn.functional.normalize(vectors_TK, dim=-1)
        return PositionMap(name, kind, NEAR, (unit_TK @ unit_TK[0])[None], vectors_TK)
    if attention.columns is None:
        return None
    q_BHTK, k_BGTK = (
        model.tokens.weight.new_zeros(1, heads, length, attention.head_width)
        for heads in (attention.heads, attention.kv_heads)
    )
    a, b = attention.columns(q_BHTK, k_BGTK, positions)
    b = b.repeat_interleave(attention.heads // attention.kv_heads, dim=1)
    bias_HT = (a[0, :, -1:].double() @ b[0].double().transpose(-1, -2))[:, 0]
    back_HT = bias_HT.flip(-1) / attention.columns.root
    return PositionMap(name, kind, BIAS, back_HT.float().cpu())


def _likeness(codes_TD: Tensor) -> Tensor:
    """Return the mean cosine of two codes at every distance, [1, T]."""
    unit_TD = nn.functional.normalize(codes_TD.double(), dim=-1)
    cosine_TT = unit_TD @ unit_TD.T
    means = [cosine_TT.diagonal(-back).mean() for back in range(len(codes_TD))]
    return torch.stack(means)[None].float()


def _turned(rotary: Rotary, length: int) -> Tensor:
    frequency = torch.tensor(rotary.table.frequencies, dtype=torch.float64)
    angle_TF = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return angle_TF.cos().mean(-1)[None].float()
