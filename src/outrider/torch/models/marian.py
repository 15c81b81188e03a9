"""Export to transformers' Marian model; `formats.readers.marian` maps the names."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel

from outrider.formats.layout import check_exportable
from outrider.formats.readers.marian import CONFIG, stacked_names
from outrider.torch.models.seq2seq import Seq2Seq

ACTIVATIONS = {"silu": "swish", "gelu_tanh": "gelu_new"}
"""Marian's names of activations, where they differ."""
SUPPORTED: dict[str, Sequence[Any]] = {
    "norm": ["post"],
    "position": ["sinusoidal"],
    "gated": [False],
    "tie_word_embeddings": [True],
}


def to_marian(model: Seq2Seq) -> MarianMTModel:
    """Return transformers' model with these weights; fails if Marian lacks a part."""
    config = model.config
    check_exportable(config, "Marian", SUPPORTED)
    theirs = MarianConfig(
        **{their: getattr(config, ours) for ours, their in CONFIG.items()},
        decoder_attention_heads=config.num_attention_heads,
        decoder_ffn_dim=config.intermediate_size,
        activation_function=ACTIVATIONS.get(config.activation, config.activation),
        forced_eos_token_id=None,
    )
    marian = MarianMTModel(theirs)
    with torch.no_grad():
        weights = marian.state_dict()
        for name, parts in stacked_names(config):
            pieces = model.get_parameter(name).chunk(len(parts))
            for part, piece in zip(parts, pieces, strict=True):
                weights[part].copy_(piece)
        if model.logits_bias is not None:
            marian.final_logits_bias.copy_(model.logits_bias)
    return marian.to(model.dtype).eval()
