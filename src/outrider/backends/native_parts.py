"""What the native core is given of a model: its shape in a few numbers, and its weights by name.

The core computes the standard layers: full and causal attention, add and norm, a feed-forward. What
else a model has is named by `missing`, and PyTorch computes it.
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

__all__ = ["ctc_shape", "drafter_shape", "missing", "model_shape", "weights"]

Array = NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]
"""Numbers, or int8 and the scale of each row."""
MIXERS = ("attention", "ssru")
POSITIONS = ("none", "sinusoidal", "learned", "rotary", "bucketed")
SCREENED_BYTES = 6 << 20
"""From this size on a head in int8 is read in four bits first: `native/src/screen.h`."""
SCREENED_GROUP = 64
"""Its width is a multiple of this."""


def missing(
    model: ModelSpec,
    drafter: DrafterSpec | None = None,
    ctc: CtcSpec | None = None,
) -> str | None:
    """Return what of a model the core cannot compute, as `key: value`; None where it can all."""
    beyond = first_unsupported(model, plain=False, mixers=MIXERS)
    if beyond is not None:
        return f"{beyond.key}: {beyond.value}"
    if model.hidden_size % 2:
        return f"hidden_size: {model.hidden_size}"
    if model.position not in POSITIONS:
        return f"position: {model.position}"
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
    """Return the numbers that a model is built from."""
    seq2seq = config if isinstance(config, Seq2SeqSpec) else None
    heads = config.num_attention_heads
    return {
        "words": config.vocab_size,
        "width": config.hidden_size,
        "heads": heads,
        "kv_heads": config.num_key_value_heads or heads,
        "encoder_layers": seq2seq.encoder_layers if seq2seq else 0,
        "decoder_layers": config.decoder_depth,
        "max_positions": config.max_positions,
        "embedding_scale": config.embedding_scale,
        "shared_embeddings": seq2seq.share_embeddings if seq2seq else True,
        "core": decoder_mixer(config),
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
    """Return where the buckets of bucketed positions begin; an encoder has half for each side."""
    if config.position != "bucketed":
        return {"encoder_edges": [], "decoder_edges": []}
    count, distance = config.buckets
    return {
        "encoder_edges": bucket_edges(count // 2, distance),
        "decoder_edges": bucket_edges(count, distance),
    }


def drafter_shape(drafter: Part[DrafterSpec]) -> dict[str, Any]:
    """Return the numbers that a drafter is built from."""
    config = drafter.config
    return {
        "layers": config.layers,
        "heads": config.num_attention_heads,
        "block": config.block,
        "rank": config.rank,
        "candidates": config.candidates,
        "taps": config.taps,
        "kept": drafter.weights["kept_V"].data.tolist() if config.shortlist else [],
        **_layer_shape(config),
    }


def ctc_shape(config: CtcSpec) -> dict[str, Any]:
    """Return the numbers that a CTC decoder is built from."""
    return {
        "layers": config.layers,
        "heads": config.num_attention_heads,
        "upsample": config.upsample,
        **_layer_shape(config),
    }


def weights(parts: Parts, *, screened: bool = False) -> dict[str, Array]:
    """Return all weights as they are stored, side decoders under `drafter.` and `ctc.`.

    Args:
        parts: A model and the decoders beside it.
        screened: Add what it takes to read a large head in four bits first.
    """
    found = _arrays(parts.model.weights, "")
    if screened:
        found |= _head_rotation(parts.model)
    if parts.drafter is not None:
        found |= _arrays(parts.drafter.weights, "drafter.")
        found |= _drafter_tables(parts.model, parts.drafter)
    if parts.ctc is not None:
        found |= _arrays(parts.ctc.weights, "ctc.")
    return found


def _head_rotation(model: Part[ModelSpec]) -> dict[str, Array]:
    """Return the main directions of a large head, largest first; nothing for a small one.

    The states of a decoder keep away from the first of them, where words have most in common, so
    that what four bits lose there weighs little.
    """
    head = model.weights.get("head.weight", model.weights["tokens.weight"])
    words, width = head.shape
    if words * width < SCREENED_BYTES or width % SCREENED_GROUP:
        return {}
    some = head.rows(np.arange(0, words, max(1, words // (16 * width)))).as_float32()
    with np.errstate(over="ignore", invalid="ignore"):
        products = some.T @ some
    if not np.isfinite(products).all():
        return {}
    _, directions = np.linalg.eigh(products)
    return {"head.rotation.weight": np.ascontiguousarray(directions.T[::-1], np.float32)}


def _drafter_tables(model: Part[ModelSpec], drafter: Part[DrafterSpec]) -> dict[str, Array]:
    """Multiply out what choosing tokens needs (`models.drafter.base.Tables`)."""
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


def _arrays(found: Mapping[str, Weight], prefix: str) -> dict[str, Array]:
    """Return what is computed with; bare whole numbers are counters and lists of tokens."""
    return {
        prefix + name: _array(weight)
        for name, weight in found.items()
        if weight.scale is not None or not weight.kind.startswith("int")
    }


def _array(weight: Weight) -> Array:
    """Return what the core is given: bfloat16 as its bits, and nothing wider than float32."""
    if weight.kind in ("int4", "float64"):
        return weight.as_float32()
    if weight.scale is not None:
        return np.ascontiguousarray(weight.data), weight.scale
    return weight.data
