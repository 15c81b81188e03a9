"""BART, and the parts that mBART and M2M100 share with it.

BART has a norm of embeddings and post-norm layers, mBART a norm of embeddings and pre-norm layers,
M2M100 (NLLB) pre-norm layers and fairseq's sinusoids. The first two rows of a table of positions
are unused. Layers have Marian's names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.errors import ConfigError
from outrider.formats.readers import marian
from outrider.formats.readers.weights import Stored, activation, check_twins, rename, take, zeros
from outrider.formats.safetensors import Weight
from outrider.formats.spec import Seq2SeqSpec, build_spec

OFFSET = 2
"""Unused rows at the beginning of a table of positions."""
CONFIG = {our: their for our, their in marian.CONFIG.items() if our != "share_embeddings"}
TWINS = {key: twin for key, twin in marian.TWINS.items() if key != "decoder_vocab_size"}
IGNORED = ("encoder.version", "decoder.version")
"""Unused buffers of older versions."""


@dataclass(kw_only=True)
class BartValues(marian.LayerValues):
    """Keys of a BART `config.json` that affect the computation, and their defaults."""

    vocab_size: int = 50265
    pad_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    bos_token_id: int | None = 0
    decoder_start_token_id: int | None = 2


def import_config(values: Mapping[str, Any]) -> Seq2SeqSpec:
    return import_family(take(BartValues, values), norm="post", embedding_norm=True)


def import_family(theirs: BartValues, **further: Any) -> Seq2SeqSpec:
    """Convert a config; `further` are keys of the family."""
    check_twins(theirs, TWINS)
    if not theirs.tie_word_embeddings:
        raise ConfigError("tie_word_embeddings", "is false, not supported for models like BART")
    ours = {our: getattr(theirs, their) for our, their in CONFIG.items()}
    if ours["decoder_start_token_id"] is None:  # mBART starts with a language
        ours["decoder_start_token_id"] = theirs.eos_token_id
    computes = {
        "activation": activation(theirs.activation_function),
        "position": "learned",
        "logits_bias": True,
    }
    return build_spec(Seq2SeqSpec, {**ours, **computes, **further})


def import_weights(
    theirs: Stored, config: Seq2SeqSpec, values: Mapping[str, Any]
) -> dict[str, Weight]:
    ours = stacks(theirs, config)
    for side in ("encoder", "decoder"):
        table = theirs.take(f"model.{side}.embed_positions.weight")
        ours[f"{side}_position.table.weight"] = table.rows(slice(OFFSET, None))
    bias = theirs.get("final_logits_bias", zeros(config.vocab_size))
    ours["logits_bias"] = Weight(bias.kind, bias.data.reshape(-1))
    theirs.check_left(IGNORED)
    return ours


def stacks(theirs: Stored, config: Seq2SeqSpec) -> dict[str, Weight]:
    """Return all weights but positions and bias."""
    theirs.expect_prefix("model.")
    theirs.tie(*marian.TIED)
    names = list(marian.stacked_names(config))
    for side in ("encoder", "decoder"):
        norms = {}
        if config.embedding_norm:
            norms[f"{side}_embedding_norm"] = "layernorm_embedding"
        if config.norm == "pre":
            norms[f"{side}.norm"] = "layer_norm"
        for our, their in norms.items():
            leaves = ("weight", "bias")
            names += [(f"{our}.{leaf}", [f"model.{side}.{their}.{leaf}"]) for leaf in leaves]
    return rename(theirs, names)
