"""Random numbers of one row, from its own seed."""

import numpy as np
import torch
from torch import Tensor

__all__ = ["Stream"]

TORCH_SEEDS = 2**32
"""PyTorch's generator looks at no more of a seed; from here on numpy's has one for each."""


class Stream:
    """Numbers in [0, 1): the same for the same seed, other ones for every other seed."""

    def __init__(self, seed: int) -> None:
        self._torch = torch.Generator().manual_seed(seed) if seed < TORCH_SEEDS else None
        self._numpy = np.random.default_rng(seed) if self._torch is None else None

    def draw(self, *shape: int) -> Tensor:
        """Return the next numbers, in float64."""
        if self._numpy is not None:
            return torch.from_numpy(self._numpy.random(shape))
        return torch.rand(shape, generator=self._torch, dtype=torch.float64)
