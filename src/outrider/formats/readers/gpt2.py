"""GPT-2. Its matrices are transposed; other factors of scores are multiplied into queries."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from outrider.formats.readers.config_keys import activation, end_of, take
from outrider.formats.readers.weights import Stored, transposed
from outrider.formats.safetensors import Weight
from outrider.formats.spec import LanguageModelSpec, build_spec

PRODUCTS = {
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feedforward.up": "mlp.c_fc",
    "feedforward.down": "mlp.c_proj",
}
IGNORED = (".attn.bias", ".attn.masked_bias")
"""Masks that older versions saved."""
NORMS = {"attention_residual.norm": "ln_1", "feedforward_residual.norm": "ln_2"}


@dataclass(kw_only=True)
class Gpt2Values:
    """Keys of a GPT-2 `config.json` that affect the computation, and their defaults."""

    ALIASES: ClassVar[Mapping[str, str]] = {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: float | int = 0.1
    attn_pdrop: float | int = 0.1
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    pad_token_id: int | None = None


def import_config(values: Mapping[str, Any]) -> LanguageModelSpec:
    theirs = take(Gpt2Values, values)
    end = end_of(theirs.eos_token_id)
    ours = {
        "vocab_size": theirs.vocab_size,
        "hidden_size": theirs.n_embd,
        "num_attention_heads": theirs.n_head,
        "intermediate_size": 4 * theirs.n_embd if theirs.n_inner is None else theirs.n_inner,
        "layers": theirs.n_layer,
        "max_positions": theirs.n_positions,
        "activation": activation(theirs.activation_function),
        "norm": "pre",
        "norm_eps": theirs.layer_norm_epsilon,
        "position": "learned",
        "dropout": theirs.resid_pdrop,
        "attention_dropout": theirs.attn_pdrop,
        "scale_embedding": False,
        "tie_word_embeddings": theirs.tie_word_embeddings,
        "pad_token_id": end if theirs.pad_token_id is None else theirs.pad_token_id,
        "eos_token_id": theirs.eos_token_id,
        "bos_token_id": end if theirs.bos_token_id is None else theirs.bos_token_id,
        "add_bos_token": None,
    }
    return build_spec(LanguageModelSpec, ours)


def import_weights(
    theirs: Stored, config: LanguageModelSpec, values: Mapping[str, Any]
) -> dict[str, Weight]:
    options = take(Gpt2Values, values)
    theirs.expect_prefix("transformer.")
    if config.tie_word_embeddings:
        theirs.tie("transformer.wte.weight", "lm_head.weight")
    ours = {
        "tokens.weight": theirs.take("transformer.wte.weight"),
        "decoder_position.table.weight": theirs.take("transformer.wpe.weight"),
    }
    if not config.tie_word_embeddings:
        ours["head.weight"] = theirs.take("lm_head.weight")
    for leaf in ("weight", "bias"):
        ours[f"decoder.norm.{leaf}"] = theirs.take(f"transformer.ln_f.{leaf}")
    for layer in range(config.layers):
        name, their = f"decoder.blocks.{layer}", f"transformer.h.{layer}"
        for leaf in ("weight", "bias"):
            for our, part in NORMS.items():
                ours[f"{name}.{our}.{leaf}"] = theirs.take(f"{their}.{part}.{leaf}")
        for our, part in PRODUCTS.items():
            ours[f"{name}.{our}.weight"] = transposed(theirs.take(f"{their}.{part}.weight"))
            ours[f"{name}.{our}.bias"] = theirs.take(f"{their}.{part}.bias")
        factor = 1.0 if options.scale_attn_weights else config.head_width**0.5
        if options.scale_attn_by_inverse_layer_idx:
            factor /= layer + 1
        for leaf in ("weight", "bias"):
            key = f"{name}.attention.qkv.{leaf}"
            ours[key] = _scale_queries(ours[key], config.hidden_size, factor)
    theirs.check_left(IGNORED)
    return ours


def _scale_queries(qkv: Weight, width: int, factor: float) -> Weight:
    if factor == 1:
        return qkv
    numbers = np.array(qkv.as_float32())
    numbers[:width] *= np.float32(factor)
    return Weight("float32", numbers)
