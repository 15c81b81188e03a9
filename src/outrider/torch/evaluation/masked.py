"""How well a masked language model names tokens that are hidden from it.

A text is cut into rows as long as the model reads, and its tokens are hidden as BERT hides them
(`data.masking`), always at the same places, so that models of one tokenizer can be compared,
whatever they learnt from. The baseline always says the most common of the tokens that are asked
for.
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

__all__ = ["MaskedScore", "score_masked"]

IntArray = NDArray[np.int32]


@dataclass(frozen=True)
class MaskedScore:
    """How well hidden tokens were named."""

    nats_per_token: float
    perplexity: float
    accuracy: float
    """Share of the tokens asked for that got the highest score."""
    commonest_accuracy: float
    """What always saying the most common one of them scores."""
    asked: int
    tokens: int


@torch.inference_mode()
def score_masked(
    model: MaskedLm, tokens: Sequence[int], masking: Masking, *, batch: int = 16
) -> MaskedScore:
    """Ask for some of the tokens of a text, in rows as long as the model reads."""
    text = np.array(tokens, np.int32)
    length = model.config.max_positions - 2  # both ends of a row are shown
    rows = -(-len(text) // length)
    shown, asked = masking(Ragged(text, np.minimum(np.arange(rows + 1) * length, len(text))), 0)
    labels = asked[asked != IGNORED]
    if not len(labels):
        raise InputError("the text holds no token that could be asked for; give a longer one")
    nats, right = 0.0, 0
    step = batch * length
    for first in range(0, len(text), step):
        inputs = _frame(model, shown[first : first + step], asked[first : first + step], length)
        nats += float(model(**inputs, num_items_in_batch=1.0).loss)
        right += model.count_right(**inputs)
    mean = nats / len(labels)
    return MaskedScore(
        nats_per_token=mean,
        perplexity=math.exp(min(mean, 700.0)),
        accuracy=right / len(labels),
        commonest_accuracy=int(np.bincount(labels).max()) / len(labels),
        asked=len(labels),
        tokens=len(text),
    )


def _frame(model: MaskedLm, shown: IntArray, asked: IntArray, length: int) -> dict[str, Tensor]:
    """Cut some text into rows, each between its start and its end token."""
    config = model.config
    rows, over = -(-len(shown) // length), -len(shown) % length
    lengths_R1 = torch.full((rows, 1), length)
    lengths_R1[-1] -= over

    def cut(values: IntArray, fill: int) -> Tensor:
        row_N = torch.from_numpy(values.astype(np.int64))
        return F.pad(F.pad(row_N, (0, over), value=fill).view(rows, length), (1, 1), value=fill)

    input_RT = cut(shown, config.pad_token_id)
    input_RT[:, 0] = config.bos_token_id
    input_RT.scatter_(1, lengths_R1 + 1, config.end_tokens[0])
    keep_RT = torch.arange(length + 2) < lengths_R1 + 2
    inputs = {
        "input_ids": input_RT,
        "attention_mask": keep_RT.long(),
        "labels": cut(asked, IGNORED),
    }
    return {name: tensor.to(model.device) for name, tensor in inputs.items()}
