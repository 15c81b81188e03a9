"""The likeliest token: the index of the largest score, the first where several are equal."""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from outrider.decoding.config import DecodeConfig
from outrider.decoding.protocol import Backend, Chooser

__all__ = ["Shortcut", "likeliest", "shortcut"]


class Shortcut(NamedTuple):
    """A way past the logits: what a backend does in one call where nobody wants to see them."""

    backend: Chooser
    forbidden: list[int]
    """Tokens that are never named."""


def likeliest(scores: Tensor) -> Tensor:
    """Return argmax over the last axis, [...].

    On a CPU numpy finds it ten times faster than torch does, which shows in every decoding step.
    """
    if scores.device.type != "cpu" or scores.dtype not in (torch.float32, torch.float64):
        return scores.argmax(-1)
    return torch.from_numpy(scores.numpy().argmax(-1))


def shortcut(backend: Backend, config: DecodeConfig) -> Shortcut | None:
    """Return a way past the logits, where the backend has one and nobody wants to see them."""
    if config.scores or config.min_new_tokens or not hasattr(backend, "likeliest"):
        return None
    return Shortcut(cast(Chooser, backend), sorted(set(config.suppress)))
