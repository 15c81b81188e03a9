"""BART, and the parts that mBART and M2M100 share with it.

BART has a norm of embeddings and post-norm layers, mBART a norm of embeddings and pre-norm layers,
M2M100 (NLLB) pre-norm layers and fairseq's sinusoids. The first two rows of a table of positions
are unused. Layers have Marian's names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.formats.readers import marian
from outrider.formats.readers.config_keys import take
from outrider.formats.readers.weights import Stored, rename
from outrider.formats.safetensors import Weight
from outrider.formats.spec import Seq2SeqSpec

OFFSET = 2
"""Unused rows at the beginning of a table of positions."""
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
    if theirs.decoder_start_token_id is None:  # mBART starts with a language
        further["decoder_start_token_id"] = theirs.eos_token_id
    return marian.import_family(theirs, position="learned", **further)


def import_weights(
    theirs: Stored, config: Seq2SeqSpec, values: Mapping[str, Any]
) -> dict[str, Weight]:
    ours = stacks(theirs, config)
    for side in ("encoder", "decoder"):
        table = theirs.take(f"model.{side}.embed_positions.weight")
        ours[f"{side}_position.table.weight"] = table.rows(slice(OFFSET, None))
    ours |= marian.logits_bias(theirs, config)
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
