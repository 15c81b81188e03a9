"""The index of the largest number of each row, the first where several are equal."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from outrider.decoding.config import DecodeConfig
from outrider.decoding.protocol import Backend, Chooser, Ridden, State

__all__ = ["Shortcut", "likeliest", "shortcut"]


class Shortcut(NamedTuple):
    """A way past the logits: what a backend does in one call where nobody wants to see them."""

    backend: Chooser
    forbidden: list[int]

    def likeliest(self, tokens: Sequence[Sequence[int]], state: State) -> list[list[int]]:
        """Feed tokens [B, T] and return the likeliest after each, [B, T]."""
        return self.backend.likeliest(tokens, state, self.forbidden)

    def ride(
        self,
        newest: Sequence[int],
        state: State,
        tokens: int,
        *,
        held: Sequence[int],
        worth: float,
    ) -> Ridden:
        """Forget beyond `held`, draft after the newest tokens, feed what is worth checking."""
        return self.backend.ride(
            newest, state, tokens, held=held, worth=worth, forbidden=self.forbidden
        )


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
