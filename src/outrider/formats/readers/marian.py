"""Marian (OPUS-MT) models: the map between their names and ours.

Theirs keep queries, keys and values in three matrices, ours in one; everything else is a new name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider.errors import ModelError
from outrider.formats.description import Seq2SeqDescription, describe
from outrider.formats.readers.config import activation, check_twins, take
from outrider.formats.readers.weights import rename
from outrider.formats.safetensors import Weight

__all__ = [
    "CONFIG",
    "MarianValues",
    "import_config",
    "import_weights",
    "stacked_names",
]

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


@dataclass(kw_only=True)
class LayerValues:
    """Keys that BART, Marian and their kin have in common, and what they are if left out.

    A test compares the defaults with those of transformers.
    """

    d_model: int = 1024
    encoder_layers: int = 12
    encoder_ffn_dim: int = 4096
    encoder_attention_heads: int = 16
    decoder_layers: int = 12
    decoder_ffn_dim: int = 4096
    decoder_attention_heads: int = 16
    max_position_embeddings: int = 1024
    activation_function: str = "gelu"
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    scale_embedding: bool = False
    tie_word_embeddings: bool = True


@dataclass(kw_only=True)
class MarianValues(LayerValues):
    """Keys of a Marian `config.json` that say how a model computes."""

    vocab_size: int = 58101
    decoder_vocab_size: int | None = None
    share_encoder_decoder_embeddings: bool = True
    pad_token_id: int | None = 58100
    eos_token_id: int | list[int] | None = 0
    bos_token_id: int | None = None
    decoder_start_token_id: int = 58100

    def __post_init__(self) -> None:
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size


def import_config(values: Mapping[str, Any]) -> Seq2SeqDescription:
    """Read a Marian `config.json`."""
    theirs = take(MarianValues, values)
    check_twins(theirs, TWINS)
    if not theirs.tie_word_embeddings:
        raise ModelError("tie_word_embeddings is false: not supported for Marian models")
    ours = {
        **{ours: getattr(theirs, their) for ours, their in CONFIG.items()},
        "activation": activation(theirs.activation_function),
        "norm": "post",
        "position": "sinusoidal",
        "logits_bias": True,
    }
    return describe(Seq2SeqDescription, ours)


def import_weights(
    theirs: Mapping[str, Weight], config: Seq2SeqDescription, values: Mapping[str, Any]
) -> dict[str, Weight]:
    """Rename and stack a Marian model's weights into ours."""
    ours = rename(theirs, stacked_names(config))
    bias = theirs.get("final_logits_bias")
    if bias is None:
        bias = Weight("float32", np.zeros(config.vocab_size, np.float32))
    ours["logits_bias"] = Weight(bias.kind, bias.data.reshape(-1))
    return ours


def stacked_names(config: Seq2SeqDescription) -> Iterator[tuple[str, list[str]]]:
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
