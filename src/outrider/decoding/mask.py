"""Tokens that must not be produced: suppressed ids always, the end token while it is too early."""

import math

import torch
from torch import Tensor

from outrider.decoding.config import DecodeConfig

__all__ = ["TokenMask"]


class TokenMask:
    """Writes minus infinity over forbidden tokens; does nothing where nothing is forbidden."""

    def __init__(self, config: DecodeConfig, *, eos: int, device: torch.device) -> None:
        always = sorted(set(config.suppress))
        self._min_new_tokens = config.min_new_tokens
        self._always = torch.tensor(always, device=device) if always else None
        early = sorted({*always, eos})
        self._early = torch.tensor(early, device=device)

    def __call__(self, scores: Tensor, step: int) -> None:
        """Change `scores` [..., V] in place; `step` counts the tokens already produced."""
        forbidden = self._early if step < self._min_new_tokens else self._always
        if forbidden is not None:
            scores.index_fill_(-1, forbidden, -math.inf)
