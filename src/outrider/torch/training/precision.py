"""What a run computes in. `train.precision: auto` takes whichever is faster on this machine.

bfloat16 halves the time of matrix products where the hardware has them (GPUs, CPUs with AMX or
AVX512-BF16), and more than doubles it on CPUs that only imitate it. A processor's name does not
say how a model will fare, so a few updates of the run itself are timed, without an update.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outrider.torch.training.objectives import Objective
from outrider.torch.training.objectives.auxiliary import ScheduledObjective

__all__ = ["Choice", "autocast", "choose_precision"]

ROUNDS = 3
"""Passes that are timed, in turn, after one that only warms up; the best of them counts."""
CLEAR = 1.5
"""Where one takes so many times as long as the other, nothing more is timed."""
GAIN = 0.95
"""bfloat16 rounds more: it must take less than this share of the time of float32."""


@dataclass(frozen=True)
class Choice:
    """A precision, and the seconds of a pass over one batch in each."""

    precision: str
    seconds: dict[str, float]

    def __str__(self) -> str:
        """One line for people."""
        times = ", ".join(f"{name} {1000 * t:,.0f} ms" for name, t in self.seconds.items())
        return f"precision: {self.precision}, measured on this machine ({times} a batch)"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """Compute matrix products in `precision`; weights and what is summed stay float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def choose_precision(
    model: nn.Module, objective: Callable[[], Objective], inputs: dict[str, Tensor]
) -> Choice:
    """Time forward and backward passes over a batch; the model is left as it was."""
    device = next(model.parameters()).device
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
    seconds = {"float32": float("inf"), "bfloat16": float("inf")}
    with _unchanged(model):
        for lap in range(ROUNDS + 1):
            for precision in seconds:
                try:
                    taken = _pass(model, objective(), inputs, precision, device)
                except RuntimeError:  # a device, or one of its operators, has no bfloat16
                    if precision == "float32":
                        raise
                    continue
                if lap:
                    seconds[precision] = min(seconds[precision], taken)
            if lap and max(seconds.values()) > CLEAR * min(seconds.values()):
                break
    faster = seconds["bfloat16"] < GAIN * seconds["float32"]
    timed = {name: taken for name, taken in seconds.items() if taken < float("inf")}
    return Choice("bfloat16" if faster else "float32", timed)


def _pass(
    model: nn.Module,
    objective: Objective,
    inputs: dict[str, Tensor],
    precision: str,
    device: torch.device,
) -> float:
    if isinstance(objective, ScheduledObjective):
        objective.set_progress(0.0)
    _wait(device)
    began = time.perf_counter()
    with autocast(precision, device):
        loss = objective.loss(model, inputs, divisor=objective.count(inputs), smoothing=0.1)
    torch.autograd.backward(loss)
    _wait(device)
    taken = time.perf_counter() - began
    model.zero_grad(set_to_none=True)
    return taken


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Let a model train for a while without a trace: buffers, gradients, random numbers, mode."""
    training = model.training
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.random.fork_rng():
            model.train()
            yield
    finally:
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
        model.train(training)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
