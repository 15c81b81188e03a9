"""Build the parts of a model from its config: positions, layers, stacks."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import nn

from outrider.formats.spec import DEFAULT_DISTANCE, bucket_edges, rotary_frequencies
from outrider.torch.models.configs import ModelConfig
from outrider.torch.nn.attention import AttentionConfig, build_attention
from outrider.torch.nn.family.halting import Halting, HaltingStack, PonderingBothWays, PonderingGru
from outrider.torch.nn.family.separable_conv import SeparableConv
from outrider.torch.nn.family.skip import SkipConfig, SkippingStack
from outrider.torch.nn.layer.block import Block
from outrider.torch.nn.layer.feedforward import FeedForward
from outrider.torch.nn.layer.heads import CrossAttention, SelfAttention, looks_ahead
from outrider.torch.nn.layer.recurrent import BothWays, Gru, Ssru
from outrider.torch.nn.layer.residual import GATE_BIAS, build_residual
from outrider.torch.nn.norm import NormKind
from outrider.torch.nn.position import Columns, LearnedPosition, Rotary, SinusoidalPosition
from outrider.torch.nn.position.alibi import Alibi
from outrider.torch.nn.position.bucketed import BucketedBias
from outrider.torch.nn.position.coordinate import CoordinatePosition
from outrider.torch.nn.position.distance import DistanceTable
from outrider.torch.nn.position.mlp import PositionMlp
from outrider.torch.nn.position.relative import Relative
from outrider.torch.nn.stack import SharedStack, Stack
from outrider.torch.nn.stack.reversible import ReversibleStack


class BlockConfig(Protocol):
    """The config keys of a layer."""

    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    activation: str
    gated: bool
    norm: str
    dropout: float
    attention_dropout: float
    activation_dropout: float


def build_position(config: ModelConfig, *, causal: bool = True) -> nn.Module | None:
    """Build the position encodings that are added to embeddings, if any."""
    # ALiBi only looks back, so its encoder uses sinusoidal positions.
    if config.position == "sinusoidal" or (config.position == "alibi" and not causal):
        return SinusoidalPosition(config.hidden_size)
    if config.position == "learned":
        return LearnedPosition(config.max_positions, config.hidden_size)
    return CoordinatePosition(config.hidden_size) if config.position == "coordinate" else None


def norm_kind(config: ModelConfig) -> NormKind:
    """Return the norm of all parts."""
    return NormKind(config.rms_norm, config.norm_eps)


def build_embedding_norm(config: ModelConfig) -> nn.Module | None:
    """Build the norm of the embeddings, if any."""
    return norm_kind(config).build(config.hidden_size) if config.embedding_norm else None


def build_position_mlp(config: ModelConfig) -> PositionMlp | None:
    """Build the positional MLP, if any."""
    return PositionMlp(config.position_mlp, config.hidden_size) if config.position_mlp else None


def build_head(config: ModelConfig) -> nn.Linear | None:
    """Build the output head, unless it is tied to the embeddings."""
    if config.tie_word_embeddings:
        return None
    return nn.Linear(config.hidden_size, config.vocab_size, bias=False)


def build_logits_bias(config: ModelConfig) -> nn.Parameter | None:
    """Build the bias of the logits, if any."""
    return nn.Parameter(torch.zeros(config.vocab_size)) if config.logits_bias else None


def build_bias(config: ModelConfig, *, causal: bool) -> BucketedBias | None:
    """Build the score bias shared by a stack, if any."""
    if config.position != "bucketed":
        return None
    buckets, distance = config.buckets
    edges = bucket_edges(buckets if causal else buckets // 2, distance)
    return BucketedBias(config.num_attention_heads, edges=edges, two_sided=not causal)


def build_columns(config: ModelConfig, *, causal: bool) -> Columns | None:
    """Build the score bias of one layer, if any."""
    heads, width = config.num_attention_heads, config.head_width
    if config.position == "alibi" and causal:
        return Alibi(heads, head_width=width)
    if config.position == "relative":
        return Relative(heads, head_width=width, codes=config.relative_codes or width)
    return None


def build_mixer(
    config: ModelConfig, attention_key: str, layer: int, bias: BucketedBias | None = None
) -> SelfAttention:
    """Build the token mixing of one layer: self-attention or a recurrent layer."""
    if config.is_recurrent(attention_key):
        # Both have the same interface.
        return cast(SelfAttention, build_recurrent(config, attention_key))
    causal = config.attention_keys[attention_key][1]
    return SelfAttention(
        config.hidden_size,
        config.num_attention_heads,
        build_attention(
            config.layer_attention(attention_key, layer),
            causal=causal,
            dropout=config.attention_dropout,
            shape=config.head_shape,
            key=attention_key,
        ),
        kv_heads=config.num_key_value_heads,
        rotary=build_rotary(config),
        columns=build_columns(config, causal=causal),
        correlation=config.position_correlation,
        head_width=config.head_width,
        bias=bias,
        distances=build_distances(config, causal=causal),
    )


def build_recurrent(config: ModelConfig, attention_key: str) -> nn.Module:
    """Build the recurrent layer in place of self-attention."""
    name, width = config.mixer_of(attention_key), config.hidden_size
    pondering = config.pondering_config
    if not config.attention_keys[attention_key][1]:
        if pondering is not None:
            return PonderingBothWays(width, pondering, core=name)
        return BothWays(width, core=name)
    if name == "ssru":
        return Ssru(width)
    return Gru(width) if pondering is None else PonderingGru(width, pondering)


def build_distances(config: ModelConfig, *, causal: bool) -> DistanceTable | None:
    """Build the distance vectors of one layer, if any."""
    if config.position != "distance":
        return None
    farthest = config.relative_distance or DEFAULT_DISTANCE
    return DistanceTable(config.head_width, farthest=farthest, two_sided=not causal)


def build_rotary(config: ModelConfig) -> Rotary | None:
    """Build the rotary positions of one layer, if any."""
    if config.position != "rotary":
        return None
    return Rotary(config.head_width, rotary_frequencies(config))


def build_stack(
    config: ModelConfig, attention_key: str, *, cross: bool, skip: SkipConfig | None = None
) -> Stack:
    """Build the stack whose attention is configured under `attention_key`."""
    key, causal = config.attention_keys[attention_key]
    layers, bias = getattr(config, key), build_bias(config, causal=causal)
    blocks = []
    for layer in range(1 if config.depth == "shared" else layers):
        attention = build_mixer(config, attention_key, layer, bias)
        blocks.append(
            build_block(
                config,
                attention,
                cross=cross,
                cross_config=getattr(config, "cross_config", None),
                residual=config.residual,
                gate_bias=GATE_BIAS if config.gate_bias is None else config.gate_bias,
                feedforward=build_transition(config, attention),
                head_width=config.head_width,
                norm_kind=norm_kind(config),
            )
        )
    stack = _join_blocks(config, blocks, layers, skip)
    stack.bias = bias
    return stack


def _join_blocks(
    config: ModelConfig, blocks: Sequence[Block], layers: int, skip: SkipConfig | None
) -> Stack:
    width, halting = config.hidden_size, config.halting_config
    norm = norm_kind(config).build(width) if config.norm == "pre" else None
    options: dict[str, Any] = {"norm": norm}
    if config.position == "coordinate":
        options["coordinate"] = CoordinatePosition(width)
    if halting is not None:
        return HaltingStack(blocks[0], layers, Halting(width, halting), **options)
    if config.depth == "shared":
        return SharedStack(blocks[0], layers, **options)
    if skip is not None:
        return SkippingStack(blocks, skip.layers, **options)
    return (ReversibleStack if config.residual == "reversible" else Stack)(blocks, **options)


def build_feedforward(config: BlockConfig, *, chunks: int = 1) -> FeedForward:
    """Build the feed-forward of one layer."""
    return FeedForward(
        config.hidden_size,
        config.intermediate_size,
        activation=config.activation,
        gated=config.gated,
        dropout=config.activation_dropout,
        chunks=chunks,
    )


def build_transition(config: ModelConfig, attention: SelfAttention) -> FeedForward:
    """Build the feed-forward or convolution of one layer."""
    if config.transition == "feedforward":
        return build_feedforward(config, chunks=config.feedforward_chunks)
    pattern = getattr(attention, "attention", None)
    ahead = isinstance(attention, BothWays) if pattern is None else looks_ahead(pattern)
    return SeparableConv(
        config.hidden_size,
        config.intermediate_size,
        activation=config.activation,
        gated=config.gated,
        dropout=config.activation_dropout,
        widths=config.filter_widths,
        ahead=ahead,
    )


def build_block(
    config: BlockConfig,
    attention: SelfAttention,
    *,
    cross: bool,
    cross_config: AttentionConfig | None = None,
    residual: str = "add",
    gate_bias: float = GATE_BIAS,
    feedforward: FeedForward | None = None,
    head_width: int | None = None,
    norm_kind: NormKind | None = None,
) -> Block:
    """Build one layer around its self-attention."""
    width, heads, dropout = config.hidden_size, config.num_attention_heads, config.attention_dropout
    return Block(
        attention,
        feedforward or build_feedforward(config),
        residual=partial(
            build_residual,
            residual,
            width,
            norm=config.norm,
            dropout=config.dropout,
            gate_bias=gate_bias,
            norm_kind=norm_kind,
        ),
        cross=CrossAttention(
            width, heads, dropout=dropout, head_width=head_width, config=cross_config
        )
        if cross
        else None,
    )
