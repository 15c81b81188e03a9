"""Pause and resume a training loop from another process."""

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from transformers import TrainerCallback


class Gate:
    """Runs a number of updates on request, and reports their time."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.remaining = 0
        self.tokens = 0
        self.start = 0.0

    def wait(self) -> bool:
        """Report, then wait for the next request; False ends the loop."""
        self.pipe.send((time.perf_counter() - self.start, self.tokens))
        self.remaining = self.pipe.recv()
        self.tokens, self.start = 0, time.perf_counter()
        return self.remaining > 0

    def step(self, tokens: int) -> bool:
        """Count an update with this many target tokens; False ends the loop."""
        self.tokens += tokens
        self.remaining -= 1
        return self.remaining > 0 or self.wait()


class GateCallback(TrainerCallback):
    """Adds a gate after every update of a transformers Trainer."""

    def __init__(self, gate: Gate, tokens: Callable[[int], int]) -> None:
        self.gate = gate
        self.tokens = tokens
        """Target tokens of an update, by its number."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the first request."""
        self.gate.wait()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called after all other callbacks."""
        if not self.gate.step(self.tokens(state.global_step)):
            control.should_training_stop = True
