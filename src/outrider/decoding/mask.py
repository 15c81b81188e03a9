"""Tokens that must not be produced: suppressed ids always, the end token while it is too early."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.decoding.config import DecodeConfig

__all__ = ["TokenMask"]


class TokenMask:
    """Writes minus infinity over forbidden tokens; does nothing where nothing is forbidden."""

    def __init__(self, config: DecodeConfig, *, eos: int, device: torch.device) -> None:
        always = sorted(set(config.suppress))
        self._eos, self._min_new_tokens = eos, config.min_new_tokens
        self._always = torch.tensor(always, device=device) if always else None
        early = sorted({*always, eos})
        self._early = torch.tensor(early, device=device)

    def __call__(self, scores: Tensor, step: int) -> None:
        """Change `scores` [..., V] in place; `step` counts the tokens already produced."""
        forbidden = self._early if step < self._min_new_tokens else self._always
        if forbidden is not None:
            scores.index_fill_(-1, forbidden, -math.inf)

    def block(self, scores_BTV: Tensor, steps: Sequence[int]) -> None:
        """Change a block in place; row b has produced `steps[b]` tokens before it."""
        if self._always is not None:
            scores_BTV.index_fill_(-1, self._always, -math.inf)
        if min(steps) < self._min_new_tokens:
            place_T = torch.arange(scores_BTV.shape[1], device=scores_BTV.device)
            step_BT = torch.tensor(steps, device=scores_BTV.device)[:, None] + place_T
            scores_BTV[..., self._eos].masked_fill_(step_BT < self._min_new_tokens, -math.inf)
