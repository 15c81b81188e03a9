"""Tokens that must not be produced: suppressed ids always, end tokens while it is too early.

Between two steps of a fast model every call counts: on a CPU, writing one column after the other
through numpy takes a tenth of the time of torch's `index_fill_`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.decoding.config import DecodeConfig
from outrider.errors import ConfigError

__all__ = ["TokenMask", "check_suppress", "forbid"]


class TokenMask:
    """Writes minus infinity over forbidden tokens; does nothing where nothing is forbidden."""

    def __init__(self, config: DecodeConfig, *, ends: Sequence[int]) -> None:
        self._ends, self._min_new_tokens = sorted(ends), config.min_new_tokens
        self._always = sorted(set(config.suppress))
        self._early = sorted({*self._always, *ends})

    def __call__(self, scores: Tensor, step: int) -> None:
        """Change `scores` [..., V] in place; `step` counts the tokens already produced."""
        forbid(scores, self._early if step < self._min_new_tokens else self._always)

    def block(self, scores_BTV: Tensor, steps: Sequence[int]) -> None:
        """Change a block in place; row b has produced `steps[b]` tokens before it."""
        forbid(scores_BTV, self._always)
        if self._min_new_tokens and min(steps) < self._min_new_tokens:
            place_T = torch.arange(scores_BTV.shape[1], device=scores_BTV.device)
            step_BT = torch.tensor(steps, device=scores_BTV.device)[:, None] + place_T
            early_BT = step_BT < self._min_new_tokens
            for end in self._ends:
                scores_BTV[..., end].masked_fill_(early_BT, -math.inf)


def check_suppress(config: DecodeConfig, vocab_size: int, ends: Sequence[int]) -> None:
    """Refuse to suppress what is no token, or so much that nothing is left to say."""
    suppressed = set(config.suppress)
    for token in suppressed:
        if not 0 <= token < vocab_size:
            accepted = f"expected token ids from 0 to {vocab_size - 1}"
            raise ConfigError("suppress", f"got {token}, {accepted}")
    if config.min_new_tokens:
        suppressed |= set(ends)
    if len(suppressed) == vocab_size:
        early = " before min_new_tokens" if config.min_new_tokens else ""
        message = f"leaves none of {vocab_size} tokens to say{early}; suppress fewer"
        raise ConfigError("suppress", message)


def forbid(scores: Tensor, tokens: Sequence[int]) -> None:
    """Write minus infinity over tokens of `scores` [..., V], in place."""
    if not tokens:
        return
    if scores.device.type == "cpu" and scores.dtype is not torch.bfloat16:
        array = scores.numpy()
        for token in tokens:
            array[..., token] = -math.inf
    else:
        scores.index_fill_(-1, torch.tensor(tokens, device=scores.device), -math.inf)
