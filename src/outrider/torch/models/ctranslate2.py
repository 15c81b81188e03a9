"""Export to CTranslate2.

Fills the library's specification of a Transformer. The library stacks queries, keys and values in
the same way, so mostly the names differ. Suppressed tokens get a large negative bias, which costs
nothing while decoding.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outrider.errors import ConfigError, MissingExtraError, ModelError
from outrider.formats.layout import check_exportable
from outrider.torch.models.configs import Seq2SeqConfig
from outrider.torch.models.seq2seq import Seq2Seq
from outrider.torch.nn.layer.block import Block
from outrider.torch.nn.norm import Norm
from outrider.torch.nn.position import LearnedPosition, Positions, SinusoidalPosition
from outrider.torch.nn.stack import Stack

QUANTIZATIONS = ("float32", "int8")
FORBIDDEN = -1e9
"""Logit bias of suppressed tokens."""
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
"""CTranslate2's names of activations."""
POSITIONS = ("sinusoidal", "learned")


class TokenNames(NamedTuple):
    """Names of the tokens of both sides, by id."""

    source: Sequence[str]
    target: Sequence[str]
    unknown: int


def to_ctranslate2(
    model: Seq2Seq, names: TokenNames, *, suppress: Collection[int], quantization: str
) -> Any:
    """Return the library's specification with these weights; its `save` writes a folder.

    Args:
        model: An encoder-decoder in the portable layout (`formats/layout.py`).
        names: The names of its tokens.
        suppress: Tokens that are never generated.
        quantization: float32, or int8 for the weights of every matrix product.
    """
    if quantization not in QUANTIZATIONS:
        expected = " or ".join(QUANTIZATIONS)
        raise ConfigError("quantization", f"got {quantization!r}, expected {expected}")
    specs, config = _library().specs, model.config
    _check_exportable(config)
    spec = specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.num_attention_heads,
        pre_norm=config.norm == "pre",
        activation=getattr(specs.common_spec.Activation, ACTIVATIONS[config.activation]),
        ffn_glu=config.gated,
    )
    source = model.tokens if model.source_tokens is None else model.source_tokens
    _fill_stack(spec.encoder, model, model.encoder, model.encoder_position)
    spec.encoder.embeddings[0].weight = _array(source.weight)
    _fill_stack(spec.decoder, model, model.decoder, model.decoder_position)
    spec.decoder.embeddings.weight = _array(model.tokens.weight)
    spec.decoder.projection.weight = _array(model.head_weight)
    spec.decoder.projection.bias = _array(_head_bias(model, suppress))
    _fill_names(spec, config, names)
    spec.validate()
    spec.optimize(quantization=quantization)
    return spec


def _library() -> Any:
    try:
        import ctranslate2
    except ImportError as error:
        raise MissingExtraError("ctranslate2", "peers", "an export for CTranslate2") from error
    return ctranslate2


def _check_exportable(config: Seq2SeqConfig) -> None:
    check_exportable(config, "CTranslate2", {"position": POSITIONS})
    if len(config.end_tokens) > 1:
        ends = ", ".join(map(str, config.end_tokens))
        raise ModelError(f"eos_token_id lists {ends}; a folder of CTranslate2 has one end token")


def _fill_names(spec: Any, config: Seq2SeqConfig, names: TokenNames) -> None:
    """Set the vocabularies; a model may have more tokens than its tokenizer."""
    source, target = (
        [*side, *(f"<unused {n}>" for n in range(len(side), config.vocab_size))]
        for side in names[:2]
    )
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.eos_token = target[config.end_tokens[0]]
    spec.config.unk_token = target[names.unknown]
    spec.config.decoder_start_token = target[config.decoder_start_token_id]
    spec.config.add_source_eos = True


def _fill_stack(spec: Any, model: Seq2Seq, stack: Stack, position: nn.Module | None) -> None:
    spec.scale_embeddings = model.config.embedding_scale
    spec.position_encodings.encodings = _array(_position_rows(model, position))
    if stack.norm is not None:
        _fill_norm(spec.layer_norm, stack.norm)
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        _fill_layer(layer, block)


def _fill_layer(spec: Any, block: Block) -> None:
    _fill_linears(spec.self_attention, block.attention.qkv, block.attention.out)
    _fill_norm(spec.self_attention.layer_norm, block.attention_residual.norm)
    if block.cross is not None and block.cross_residual is not None:
        _fill_linears(spec.attention, block.cross.q, block.cross.kv, block.cross.out)
        _fill_norm(spec.attention.layer_norm, block.cross_residual.norm)
    up, down = block.feedforward.up, block.feedforward.down
    if block.feedforward.gated:
        x, gate = (list(half) for half in zip(up.weight.chunk(2), up.bias.chunk(2), strict=True))
        _fill_product(spec.ffn.linear_0, *x)
        _fill_product(spec.ffn.linear_0_noact, *gate)
    else:
        _fill_product(spec.ffn.linear_0, up.weight, up.bias)
    _fill_product(spec.ffn.linear_1, down.weight, down.bias)
    _fill_norm(spec.ffn.layer_norm, block.feedforward_residual.norm)


def _fill_linears(spec: Any, *linears: nn.Linear) -> None:
    for target, linear in zip(spec.linear, linears, strict=True):
        _fill_product(target, linear.weight, linear.bias)


def _fill_product(spec: Any, weight: Tensor, bias: Tensor) -> None:
    spec.weight, spec.bias = _array(weight), _array(bias)


def _fill_norm(spec: Any, norm: Norm) -> None:
    assert isinstance(norm, nn.LayerNorm), "_check_exportable refuses other norms"
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _head_bias(model: Seq2Seq, suppress: Collection[int]) -> Tensor:
    bias_V = torch.zeros(model.config.vocab_size)
    if model.logits_bias is not None:
        bias_V = model.logits_bias.detach().float().clone()
    bias_V[list(suppress)] = FORBIDDEN
    return bias_V


def _position_rows(model: Seq2Seq, position: nn.Module | None) -> Tensor:
    """Return the position encodings up to `max_positions`, the limit of the exported model."""
    if isinstance(position, LearnedPosition):
        return position.table.weight
    assert isinstance(position, SinusoidalPosition)
    rows = model.config.max_positions
    zero_BTD = torch.zeros(1, rows, model.config.hidden_size)
    return position(zero_BTD, Positions.upto(rows, zero_BTD.device))[0]


def _array(weight: Tensor) -> Any:
    return weight.detach().float().contiguous().cpu().numpy()
