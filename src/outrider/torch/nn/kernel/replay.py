"""Computing something a second time exactly as the first: the same random numbers and precision.

A backward that computes a part again rather than keep what it gave must draw the dropout masks and
hashes of the first run, and must leave the generators where they stand.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

__all__ = ["Moment", "Setting"]


class Setting(NamedTuple):
    """The precision the first run was asked to compute in."""

    device: str
    dtype: torch.dtype
    enabled: bool

    @classmethod
    def now(cls, x: Tensor) -> "Setting":
        """Remember what holds for the device of `x`."""
        kind = x.device.type
        return cls(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

    def again(self) -> torch.autocast:
        """Return a context in which the same holds."""
        # A weight that was cast without gradients must not be found in the cache by others.
        return torch.autocast(
            self.device, dtype=self.dtype, enabled=self.enabled, cache_enabled=False
        )


class Moment(NamedTuple):
    """Where the random number generators stood."""

    state: Tensor
    device: str
    devices: list[int]
    states: list[Tensor]

    @classmethod
    def now(cls, x: Tensor) -> "Moment":
        """Remember the generators of the CPU and of the device of `x`."""
        devices, states = get_device_states(x)
        return cls(torch.get_rng_state(), x.device.type if devices else "cuda", devices, states)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw the same numbers once more; afterwards the generators stand where they did."""
        with torch.random.fork_rng(self.devices, device_type=self.device):
            torch.set_rng_state(self.state)
            set_device_states(self.devices, self.states, device_type=self.device)
            yield
