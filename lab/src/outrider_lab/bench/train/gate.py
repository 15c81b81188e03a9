"""Start and stop a training loop from outside, an update at a time."""

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from transformers import TrainerCallback

__all__ = ["Gate", "GateCallback"]


class Gate:
    """Lets a loop do a number of updates on request, and reports how long they took."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.left = 0
        self.tokens = 0
        self.began = 0.0

    def wait(self) -> bool:
        """Report, then block until more updates are wanted; False ends the loop."""
        self.pipe.send((time.perf_counter() - self.began, self.tokens))
        self.left = self.pipe.recv()
        self.tokens, self.began = 0, time.perf_counter()
        return self.left > 0

    def step(self, tokens: int) -> bool:
        """Count one update of so many target tokens; False ends the loop."""
        self.tokens += tokens
        self.left -= 1
        return self.left > 0 or self.wait()


class GateCallback(TrainerCallback):
    """Puts a gate behind every update of a transformers Trainer."""

    def __init__(self, gate: Gate, tokens: Callable[[int], int]) -> None:
        self.gate = gate
        self.tokens = tokens
        """Target tokens of an update, by its number."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the first request."""
        self.gate.wait()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Runs last of all callbacks."""
        if not self.gate.step(self.tokens(state.global_step)):
            control.should_training_stop = True
