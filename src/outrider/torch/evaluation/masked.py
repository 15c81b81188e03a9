"""Scores of a masked language model on hidden tokens.

A text is cut into rows of the model's length, and tokens are hidden as in BERT (`data.labels`),
always at the same positions, so that models with the same tokenizer can be compared. The baseline
always predicts the most frequent hidden token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from outrider.data.labels import Masking
from outrider.data.shards import Ragged
from outrider.errors import InputError
from outrider.torch.models import MaskedLm
from outrider.torch.nn.loss import IGNORED

IntArray = NDArray[np.int32]


@dataclass(frozen=True)
class MaskedScore:
    """How well a model predicts hidden tokens."""

    nats_per_token: float
    perplexity: float
    accuracy: float
    """Share of hidden tokens with the highest score."""
    commonest_accuracy: float
    """Accuracy of the baseline."""
    asked: int
    tokens: int


@torch.inference_mode()
def score_masked(
    model: MaskedLm, tokens: Sequence[int], masking: Masking, *, batch: int = 16
) -> MaskedScore:
    """Hide tokens of a text and predict them, in rows of the model's length."""
    text = np.array(tokens, np.int32)
    length = model.config.max_positions - 2  # without <s> and </s>
    rows = -(-len(text) // length)
    inputs, labels = masking(Ragged(text, np.minimum(np.arange(rows + 1) * length, len(text))), 0)
    hidden = labels[labels != IGNORED]
    if not len(hidden):
        raise InputError("the text holds no token that could be hidden; give a longer one")
    nats, right = 0.0, 0
    step = batch * length
    for first in range(0, len(text), step):
        batch_rows = slice(first, first + step)
        tensors = _rows(model, inputs[batch_rows], labels[batch_rows], length)
        nats += float(model(**tensors, num_items_in_batch=1.0).loss)
        right += model.count_right(**tensors)
    mean = nats / len(hidden)
    return MaskedScore(
        nats_per_token=mean,
        perplexity=math.exp(min(mean, 700.0)),
        accuracy=right / len(hidden),
        commonest_accuracy=int(np.bincount(hidden).max()) / len(hidden),
        asked=len(hidden),
        tokens=len(text),
    )


def _rows(model: MaskedLm, ids: IntArray, labels: IntArray, length: int) -> dict[str, Tensor]:
    """Cut text into rows between a start and an end token."""
    config = model.config
    rows, missing = -(-len(ids) // length), -len(ids) % length
    lengths_R1 = torch.full((rows, 1), length)
    lengths_R1[-1] -= missing

    def cut(values: IntArray, fill: int) -> Tensor:
        row_N = torch.from_numpy(values.astype(np.int64))
        return F.pad(F.pad(row_N, (0, missing), value=fill).view(rows, length), (1, 1), value=fill)

    input_RT = cut(ids, config.pad_token_id)
    input_RT[:, 0] = config.bos_token_id
    input_RT.scatter_(1, lengths_R1 + 1, config.end_tokens[0])
    keep_RT = torch.arange(length + 2) < lengths_R1 + 2
    inputs = {
        "input_ids": input_RT,
        "attention_mask": keep_RT.long(),
        "labels": cut(labels, IGNORED),
    }
    return {name: tensor.to(model.device) for name, tensor in inputs.items()}
