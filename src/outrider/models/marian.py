"""Marian (OPUS-MT) models: the map between their weights and ours, both ways.

Theirs keep queries, keys and values in three matrices, ours in one; everything else is a new name.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from outrider.errors import ModelError
from outrider.models.config import Seq2SeqConfig
from outrider.models.portable import first_unsupported
from outrider.models.seq2seq import Seq2Seq

__all__ = ["MODEL_TYPE", "import_config", "import_weights", "to_marian"]

MODEL_TYPE = "marian"

LAYER = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.out_proj",),
    "attention_residual.norm": ("self_attn_layer_norm",),
    "feedforward.up": ("fc1",),
    "feedforward.down": ("fc2",),
    "feedforward_residual.norm": ("final_layer_norm",),
}
"""Our part of a layer: their parts, stacked in this order."""

CROSS = {
    "cross.q": ("encoder_attn.q_proj",),
    "cross.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.out": ("encoder_attn.out_proj",),
    "cross_residual.norm": ("encoder_attn_layer_norm",),
}

CONFIG = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "max_positions": "max_position_embeddings",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "scale_embedding": "scale_embedding",
    "tie_word_embeddings": "tie_word_embeddings",
    "share_embeddings": "share_encoder_decoder_embeddings",
    "pad_token_id": "pad_token_id",
    "eos_token_id": "eos_token_id",
    "bos_token_id": "bos_token_id",
    "decoder_start_token_id": "decoder_start_token_id",
}
"""Our key: theirs."""

TWINS = {
    "decoder_attention_heads": "encoder_attention_heads",
    "decoder_ffn_dim": "encoder_ffn_dim",
    "decoder_vocab_size": "vocab_size",
}
"""Their keys that must say what another says; all further ones say nothing of how ours compute."""

ACTIVATIONS = {"swish": "silu"}
"""Their name of an activation where it differs from ours."""


def import_config(values: Mapping[str, Any]) -> Seq2SeqConfig:
    """Read a Marian `config.json`."""
    known = {*CONFIG.values(), *TWINS, "activation_function"}
    theirs = MarianConfig.from_dict({key: values[key] for key in values.keys() & known})
    for key, twin in TWINS.items():
        if getattr(theirs, key) != getattr(theirs, twin):
            raise ModelError(f"{key} {getattr(theirs, key)} differs from {twin}: not supported")
    if not theirs.tie_word_embeddings:
        raise ModelError("tie_word_embeddings is false: not supported for Marian models")
    activation = theirs.activation_function
    return Seq2SeqConfig(
        **{ours: getattr(theirs, their) for ours, their in CONFIG.items()},
        activation=ACTIVATIONS.get(activation, activation),
        norm="post",
        position="sinusoidal",
        logits_bias=True,
    )


def import_weights(theirs: Mapping[str, Tensor], config: Seq2SeqConfig) -> dict[str, Tensor]:
    """Rename and stack a Marian model's weights into ours."""
    ours = {}
    for name, parts in _names(config):
        missing = [part for part in parts if part not in theirs]
        if missing:
            raise ModelError(f"the Marian weights lack {missing[0]!r}")
        ours[name] = torch.cat([theirs[part] for part in parts])
    bias = theirs.get("final_logits_bias")
    ours["logits_bias"] = torch.zeros(config.vocab_size) if bias is None else bias.reshape(-1)
    return ours


def to_marian(model: Seq2Seq) -> MarianMTModel:
    """Return transformers' own model with these weights; fails where Marian has no such part."""
    config = model.config
    _check_exportable(config)
    names = {silu: swish for swish, silu in ACTIVATIONS.items()}
    theirs = MarianConfig(
        **{their: getattr(config, ours) for ours, their in CONFIG.items()},
        decoder_attention_heads=config.num_attention_heads,
        decoder_ffn_dim=config.intermediate_size,
        activation_function=names.get(config.activation, config.activation),
        forced_eos_token_id=None,
    )
    twin = MarianMTModel(theirs)
    with torch.no_grad():
        weights = twin.state_dict()
        for name, parts in _names(config):
            pieces = model.get_parameter(name).chunk(len(parts))
            for part, piece in zip(parts, pieces, strict=True):
                weights[part].copy_(piece)
        if model.logits_bias is not None:
            twin.final_logits_bias.copy_(model.logits_bias)
    return twin.to(model.dtype).eval()


def _names(config: Seq2SeqConfig) -> Iterator[tuple[str, list[str]]]:
    """Yield each of our weights with the Marian weights it is stacked from."""
    if config.share_embeddings:
        yield "tokens.weight", ["model.shared.weight"]
    else:
        yield "tokens.weight", ["model.decoder.embed_tokens.weight"]
        yield "source_tokens.weight", ["model.encoder.embed_tokens.weight"]
    for side, layers, parts in (
        ("encoder", config.encoder_layers, LAYER),
        ("decoder", config.decoder_layers, LAYER | CROSS),
    ):
        for layer in range(layers):
            for ours, theirs in parts.items():
                for leaf in ("weight", "bias"):
                    name = f"{side}.blocks.{layer}.{ours}.{leaf}"
                    yield name, [f"model.{side}.layers.{layer}.{part}.{leaf}" for part in theirs]


def _check_exportable(config: Seq2SeqConfig) -> None:
    usual = {"norm": "post", "position": "sinusoidal", "gated": False, "tie_word_embeddings": True}
    for key, value in usual.items():
        if getattr(config, key) != value:
            raise ModelError(f"{key} is {getattr(config, key)!r}; a Marian model has {value!r}")
    unsupported = first_unsupported(config)
    if unsupported is not None:
        key, found, portable = unsupported
        raise ModelError(f"{key} is {found!r}; a Marian model has {portable!r}")
    if config.num_key_value_heads not in (None, config.num_attention_heads):
        raise ModelError("num_key_value_heads: a Marian model has one per attention head")
