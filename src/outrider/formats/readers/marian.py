"""Marian (OPUS-MT). Queries, keys and values are three matrices there and one here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ConfigError, ModelError
from outrider.formats.readers.config_keys import activation, check_twins, take
from outrider.formats.readers.weights import Stored, rename, zeros
from outrider.formats.safetensors import Weight
from outrider.formats.spec import Seq2SeqSpec, build_spec

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
"""Our key: their key."""
TIED = (
    *("model.shared.weight", "model.decoder.embed_tokens.weight"),
    *("model.encoder.embed_tokens.weight", "lm_head.weight"),
)
"""Names of the shared table of embeddings."""
ROUNDING = 1e-4, 5e-3
"""Largest difference of stored and computed sinusoids: in float32, in half precision."""
TWINS = {
    "decoder_attention_heads": "encoder_attention_heads",
    "decoder_ffn_dim": "encoder_ffn_dim",
    "decoder_vocab_size": "vocab_size",
}
"""Their keys that must equal another."""


@dataclass(kw_only=True)
class LayerValues:
    """Keys that BART and Marian share, and their defaults; a test compares with transformers."""

    ALIASES: ClassVar[Mapping[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

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
    """Keys of a Marian `config.json` that affect the computation, and their defaults."""

    vocab_size: int = 58101
    decoder_vocab_size: int | None = None
    share_encoder_decoder_embeddings: bool = True
    pad_token_id: int | None = 58100
    eos_token_id: int | list[int] | None = 0
    bos_token_id: int | None = None
    decoder_start_token_id: int = 58100

    def __post_init__(self) -> None:
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size


def import_config(values: Mapping[str, Any]) -> Seq2SeqSpec:
    return import_family(take(MarianValues, values), norm="post", position="sinusoidal")


def import_family(theirs: LayerValues, **further: Any) -> Seq2SeqSpec:
    """Convert a config; `further` are keys of the family."""
    check_twins(theirs, TWINS)
    if not theirs.tie_word_embeddings:
        raise ConfigError("tie_word_embeddings", "is false, not supported for this family")
    keys = [(our, their) for our, their in CONFIG.items() if hasattr(theirs, their)]
    ours = {our: getattr(theirs, their) for our, their in keys}
    ours |= {"activation": activation(theirs.activation_function), "logits_bias": True}
    return build_spec(Seq2SeqSpec, ours | further)


def import_weights(
    theirs: Stored, config: Seq2SeqSpec, values: Mapping[str, Any]
) -> dict[str, Weight]:
    if config.share_embeddings:
        theirs.tie(*TIED)
    else:
        theirs.tie("model.decoder.embed_tokens.weight", "lm_head.weight")
    ours = rename(theirs, stacked_names(config)) | logits_bias(theirs, config)
    _check_positions(theirs, config)
    theirs.check_left()
    return ours


def logits_bias(theirs: Stored, config: Seq2SeqSpec) -> dict[str, Weight]:
    """Return the bias of the logits, which some files lack."""
    bias = theirs.get("final_logits_bias", zeros(config.vocab_size))
    return {"logits_bias": Weight(bias.kind, bias.data.reshape(-1))}


def _check_positions(theirs: Stored, config: Seq2SeqSpec) -> None:
    """Refuse stored positions that differ from the sinusoids of our models."""
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_positions.weight"
        if name not in theirs:
            continue
        stored = theirs[name]
        table = _sinusoids(config.max_positions, config.hidden_size)
        rounding = ROUNDING[stored.kind not in ("float32", "float64")]
        same = stored.shape == table.shape
        if not same or not np.abs(stored.as_float32() - table).max() <= rounding:
            raise ModelError(f"{name!r} is not the table of sinusoids: not supported")


def _sinusoids(rows: int, width: int) -> NDArray[np.float64]:
    """Return sines, then cosines, of wavelengths from 2 pi to 2 pi times 10,000."""
    angle = np.arange(rows)[:, None] * 10_000.0 ** (-2 * np.arange((width + 1) // 2) / width)
    return np.concatenate([np.sin(angle), np.cos(angle[:, : width // 2])], 1)


def stacked_names(config: Seq2SeqSpec) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each of our weights with the names that it is stacked from."""
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
