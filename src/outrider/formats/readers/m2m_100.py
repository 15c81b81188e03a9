"""M2M100 and NLLB: mBART without a norm of embeddings, and with fairseq's sinusoids.

    row p = [sin(p f), cos(p f)]        f_k = 10000^(-k / (D/2 - 1))        p = 2, 3, ...

The sinusoids are computed here and become a table of learned positions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider.errors import ConfigError, ModelError
from outrider.formats.readers.bart import IGNORED, OFFSET, BartValues, import_family, stacks
from outrider.formats.readers.config_keys import take
from outrider.formats.readers.weights import Stored
from outrider.formats.safetensors import Weight
from outrider.formats.spec import Seq2SeqSpec

MOST_POSITIONS = 1 << 14
"""Rows of the largest table that is computed."""


@dataclass(kw_only=True)
class M2M100Values(BartValues):
    vocab_size: int = 128112
    activation_function: str = "relu"
    attention_dropout: float | int = 0.1
    scale_embedding: bool = True


def import_config(values: Mapping[str, Any]) -> Seq2SeqSpec:
    theirs = take(M2M100Values, values)
    if not 1 <= theirs.max_position_embeddings <= MOST_POSITIONS:
        message = f"got {theirs.max_position_embeddings}, expected 1 to {MOST_POSITIONS}"
        raise ConfigError("max_position_embeddings", message)
    if theirs.d_model < 4 or theirs.d_model % 2:
        raise ConfigError("d_model", f"got {theirs.d_model}, expected an even number from 4 on")
    if theirs.pad_token_id != OFFSET - 1:
        message = f"got {theirs.pad_token_id}, but positions are counted from {OFFSET - 1}"
        raise ConfigError("pad_token_id", message)
    return import_family(theirs, norm="pre", logits_bias=False)


def import_weights(
    theirs: Stored, config: Seq2SeqSpec, values: Mapping[str, Any]
) -> dict[str, Weight]:
    ours = stacks(theirs, config)
    bias = theirs.get("final_logits_bias")
    if bias is not None and bias.as_float32().any():
        raise ModelError("'final_logits_bias' is not zero: not supported for M2M100 models")
    theirs.check_left((*IGNORED, "embed_positions.weights"))
    table = Weight("float32", _sinusoids(config.max_positions, config.hidden_size))
    return {**ours, **{f"{side}_position.table.weight": table for side in ("encoder", "decoder")}}


def _sinusoids(positions: int, width: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return the table, computed in float32 as in training."""
    half = width // 2
    step = np.float32(-math.log(10_000) / (half - 1))
    frequency = np.exp(np.arange(half, dtype=np.float32) * step)
    angle = np.arange(OFFSET, OFFSET + positions, dtype=np.float32)[:, None] * frequency
    table = np.empty((positions, width), np.float32)
    table[:, :half], table[:, half:] = np.sin(angle), np.cos(angle)
    return table
