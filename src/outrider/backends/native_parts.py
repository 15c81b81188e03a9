"""What the native core is given of a model: its shape in a few numbers, and its weights by name.

The core computes the standard layers: full and causal attention, add and norm, a feed-forward. What
else a model has is named by `missing`, and PyTorch computes it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from outrider.models import Drafter, LanguageModel, Seq2Seq
from outrider.models.config import LanguageModelConfig, Seq2SeqConfig
from outrider.models.ctc import Ctc
from outrider.models.portable import first_unsupported

__all__ = ["ctc_shape", "drafter_shape", "missing", "model_shape", "weights"]

POSITIONS = ("none", "sinusoidal", "learned", "rotary")


def missing(
    model: Seq2Seq | LanguageModel, drafter: Drafter | None = None, ctc: Ctc | None = None
) -> str | None:
    """Return what of a model the core cannot compute, as `key: value`; None where it can all."""
    config = model.config
    beyond = first_unsupported(config)
    if beyond is not None:
        return f"{beyond.key}: {beyond.value}"
    if config.hidden_size % 2:
        return f"hidden_size: {config.hidden_size}"
    if config.position not in POSITIONS:
        return f"position: {config.position}"
    if drafter is not None:
        for key, usual in (("core", "transformer"), ("reads", "encoder")):
            if getattr(drafter.config, key) != usual:
                return f"{key}: {getattr(drafter.config, key)} (of the drafter)"
    if ctc is not None and ctc.config.cross:
        return "cross: true (of the CTC decoder)"
    return None


def model_shape(config: Seq2SeqConfig | LanguageModelConfig, dtype: str) -> dict[str, Any]:
    """Return the numbers that a model is built from."""
    seq2seq = isinstance(config, Seq2SeqConfig)
    heads = config.num_attention_heads
    return {
        "words": config.vocab_size,
        "width": config.hidden_size,
        "heads": heads,
        "kv_heads": config.num_key_value_heads or heads,
        "encoder_layers": config.encoder_layers if seq2seq else 0,
        "decoder_layers": config.decoder_layers if seq2seq else config.layers,
        "max_positions": config.max_positions,
        "embedding_scale": config.embedding_scale,
        "shared_embeddings": config.share_embeddings if seq2seq else True,
        "position": config.position,
        "dtype": dtype,
        **_layer_shape(config),
    }


def drafter_shape(drafter: Drafter) -> dict[str, Any]:
    """Return the numbers that a drafter is built from."""
    config, kept_V = drafter.config, drafter.kept_V
    return {
        "layers": config.layers,
        "heads": config.num_attention_heads,
        "block": config.block,
        "rank": config.rank,
        "candidates": config.candidates,
        "taps": config.taps,
        "kept": [] if kept_V is None else kept_V.tolist(),
        **_layer_shape(config),
    }


def ctc_shape(ctc: Ctc) -> dict[str, Any]:
    """Return the numbers that a CTC decoder is built from."""
    config = ctc.config
    return {
        "layers": config.layers,
        "heads": config.num_attention_heads,
        "upsample": config.upsample,
        **_layer_shape(config),
    }


def weights(
    model: Seq2Seq | LanguageModel, drafter: Drafter | None = None, ctc: Ctc | None = None
) -> dict[str, NDArray[np.float32]]:
    """Return all weights as float32 arrays, side decoders under `drafter.` and `ctc.`."""
    found = _arrays(model, "")
    if drafter is not None:
        found |= _arrays(drafter, "drafter.")
        tables = drafter.tables()
        found["drafter.head.weight"] = _array(tables.head_VD)
        found["drafter.head.bias"] = _array(tables.bias_V)
        if drafter.config.rank:
            found["drafter.out"] = _array(tables.out_VR)
            found["drafter.token"] = _array(tables.token_VR)
    if ctc is not None:
        found |= _arrays(ctc, "ctc.")
    return found


def _layer_shape(config: Any) -> dict[str, Any]:
    return {
        "inner": config.intermediate_size,
        "pre_norm": config.norm == "pre",
        "gated": config.gated,
        "activation": config.activation,
    }


def _arrays(module: nn.Module, prefix: str) -> dict[str, NDArray[np.float32]]:
    return {prefix + name: _array(weight) for name, weight in module.named_parameters()}


def _array(weight: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = weight.detach().float().cpu().contiguous().numpy()
    return array
