"""Recomputation with the same random numbers and precision.

A backward that recomputes a part must draw the dropout masks and hashes of the first run, and must
not change the state of the generators.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states


class Setting(NamedTuple):
    """Autocast setting of the first run."""

    device: str
    dtype: torch.dtype
    enabled: bool

    @classmethod
    def now(cls, x: Tensor) -> "Setting":
        """Return the current setting for the device of `x`."""
        kind = x.device.type
        return cls(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

    def again(self) -> torch.autocast:
        """Return a context with this setting."""
        # A weight cast without gradients must not enter the autocast cache.
        return torch.autocast(
            self.device, dtype=self.dtype, enabled=self.enabled, cache_enabled=False
        )


class Moment(NamedTuple):
    """State of the random number generators."""

    state: Tensor
    device: str
    devices: list[int]
    states: list[Tensor]

    @classmethod
    def now(cls, x: Tensor) -> "Moment":
        """Return the state of the CPU's generator and of that of `x`."""
        devices, states = get_device_states(x)
        return cls(torch.get_rng_state(), x.device.type if devices else "cuda", devices, states)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw the same numbers again, then restore the generators."""
        with torch.random.fork_rng(self.devices, device_type=self.device):
            torch.set_rng_state(self.state)
            set_device_states(self.devices, self.states, device_type=self.device)
            yield
