"""The shape and the weights of a model for the native core.

The core supports standard layers: full and causal attention, normalisation, feed-forward. `missing`
names an unsupported part of a model.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.formats.folder import Part, Parts
from outrider.formats.layout import decoder_mixer, first_unsupported
from outrider.formats.safetensors import Weight
from outrider.formats.side_spec import CtcSpec, DrafterSpec
from outrider.formats.spec import (
    ModelSpec,
    Seq2SeqSpec,
    bucket_edges,
    rotary_frequencies,
)

Array = NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]
"""An array, or int8 weights with the scale of each row."""
MIXERS = ("attention", "ssru")
POSITIONS = ("none", "sinusoidal", "learned", "rotary", "bucketed")
SCREENED_BYTES = 6 << 20
"""Size from which an int8 head is screened in four bits first: `native/src/screen.h`."""
SCREENED_GROUP = 64
"""Divisor of the width of a screened head."""


def missing(
    model: ModelSpec,
    drafter: DrafterSpec | None = None,
    ctc: CtcSpec | None = None,
) -> str | None:
    """Return an unsupported part of a model as `key: value`; None if there is none."""
    beyond = first_unsupported(model, {"position": POSITIONS}, mixers=MIXERS)
    if beyond is not None:
        return f"{beyond[0]}: {beyond[1]}"
    if model.hidden_size % 2:
        return f"hidden_size: {model.hidden_size}"
    whole = model.head_width * model.num_attention_heads == model.hidden_size
    if not whole and decoder_mixer(model) != "attention":
        return f"head_dim: {model.head_dim} (of an {decoder_mixer(model)})"
    if drafter is not None:
        for key, usual in (("core", "transformer"), ("reads", "encoder")):
            if getattr(drafter, key) != usual:
                return f"{key}: {getattr(drafter, key)} (of the drafter)"
    if ctc is not None and ctc.cross:
        return "cross: true (of the CTC decoder)"
    return None


def model_shape(config: ModelSpec, dtype: str) -> dict[str, Any]:
    """Return the core's arguments for a model."""
    seq2seq = config if isinstance(config, Seq2SeqSpec) else None
    heads = config.num_attention_heads
    return {
        "vocab_size": config.vocab_size,
        "width": config.hidden_size,
        "heads": heads,
        "kv_heads": config.num_key_value_heads or heads,
        "encoder_layers": seq2seq.encoder_layers if seq2seq else 0,
        "decoder_layers": config.decoder_depth,
        "max_positions": config.max_positions,
        "embedding_scale": config.embedding_scale,
        "shared_embeddings": seq2seq.share_embeddings if seq2seq else True,
        "mixer": decoder_mixer(config),
        "position": config.position,
        "dtype": dtype,
        "head_width": config.head_width,
        "rms_norm": config.rms_norm,
        "norm_eps": config.norm_eps,
        "embedding_norm": config.embedding_norm,
        "frequencies": rotary_frequencies(config) if config.position == "rotary" else (),
        **_edges(config),
        **_layer_shape(config),
    }


def _edges(config: ModelSpec) -> dict[str, list[int]]:
    """Return the first distances of position buckets; an encoder has half for each direction."""
    if config.position != "bucketed":
        return {"encoder_edges": [], "decoder_edges": []}
    count, distance = config.buckets
    return {
        "encoder_edges": bucket_edges(count // 2, distance),
        "decoder_edges": bucket_edges(count, distance),
    }


def drafter_shape(drafter: Part[DrafterSpec]) -> dict[str, Any]:
    """Return the core's arguments for a drafter."""
    config = drafter.config
    return {
        "layers": config.layers,
        "heads": config.num_attention_heads,
        "block": config.block,
        "rank": config.rank,
        "candidates": config.candidates,
        "taps": config.taps,
        "shortlist": drafter.weights["kept_V"].data.tolist() if config.shortlist else [],
        **_layer_shape(config),
    }


def ctc_shape(config: CtcSpec) -> dict[str, Any]:
    """Return the core's arguments for a CTC decoder."""
    return {
        "layers": config.layers,
        "heads": config.num_attention_heads,
        "upsample": config.upsample,
        **_layer_shape(config),
    }


def weights(parts: Parts, *, screened: bool = False) -> dict[str, Array]:
    """Return all stored weights, those of side decoders under `drafter.` and `ctc.`.

    Args:
        parts: A model with its side decoders.
        screened: Add the rotation for screening a large head in four bits.
    """
    arrays = _arrays(parts.model.weights, "")
    if screened:
        arrays |= _head_rotation(parts.model)
    if parts.drafter is not None:
        arrays |= _arrays(parts.drafter.weights, "drafter.")
        arrays |= _drafter_tables(parts.model, parts.drafter)
    if parts.ctc is not None:
        arrays |= _arrays(parts.ctc.weights, "ctc.")
    return arrays


def _head_rotation(model: Part[ModelSpec]) -> dict[str, Array]:
    """Return the principal directions of a large head, largest first; none for a small one.

    Decoder states have small components along the first directions, which the tokens share, so
    four-bit errors there change scores little.
    """
    head = model.weights.get("head.weight", model.weights["tokens.weight"])
    vocab_size, width = head.shape
    if vocab_size * width < SCREENED_BYTES or width % SCREENED_GROUP:
        return {}
    step = max(1, vocab_size // (16 * width))
    sample = head.rows(np.arange(0, vocab_size, step)).as_float32()
    with np.errstate(over="ignore", invalid="ignore"):
        products = sample.T @ sample
    if not np.isfinite(products).all():
        return {}
    _, directions = np.linalg.eigh(products)
    return {"head.rotation.weight": np.ascontiguousarray(directions.T[::-1], np.float32)}


def _drafter_tables(model: Part[ModelSpec], drafter: Part[DrafterSpec]) -> dict[str, Array]:
    """Compute the drafter's tables for choosing tokens (`models.drafter.base.Tables`)."""
    tokens, own = model.weights["tokens.weight"], drafter.weights
    head, bias_V = model.weights.get("head.weight", tokens), own["bias"].as_float32()
    if "logits_bias" in model.weights:
        bias_V = bias_V + model.weights["logits_bias"].as_float32()
    if drafter.config.shortlist:
        kept_N = own["kept_V"].data
        head, bias_V = head.rows(kept_N), bias_V[kept_N]
    tables: dict[str, Array] = {"drafter.head.weight": _array(head), "drafter.head.bias": bias_V}
    if drafter.config.rank:
        scale = np.float32(model.config.embedding_scale)
        with np.errstate(over="ignore", invalid="ignore"):  # the core refuses such results
            tables["drafter.out"] = head.as_float32() @ own["to_token.weight"].as_float32()
            token_VR = tokens.as_float32() @ (scale * own["from_token.weight"].as_float32()).T
        tables["drafter.token"] = np.ascontiguousarray(token_VR)
    return tables


def _layer_shape(config: Any) -> dict[str, Any]:
    return {
        "inner": config.intermediate_size,
        "pre_norm": config.norm == "pre",
        "gated": config.gated,
        "activation": config.activation,
    }


def _arrays(weights: Mapping[str, Weight], prefix: str) -> dict[str, Array]:
    """Return weights as arrays, without integers (counters and token lists)."""
    return {
        prefix + name: _array(weight)
        for name, weight in weights.items()
        if weight.scale is not None or not weight.kind.startswith("int")
    }


def _array(weight: Weight) -> Array:
    """Return a weight as the core takes it: bfloat16 as bits, at most float32."""
    if weight.kind in ("int4", "float64"):
        return weight.as_float32()
    if weight.scale is not None:
        return np.ascontiguousarray(weight.data), weight.scale
    return weight.data
