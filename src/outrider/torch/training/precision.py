"""Precision of training. `train.precision: auto` measures which is faster on this machine.

bfloat16 halves the time of matrix products where the hardware supports it (GPUs, CPUs with AMX or
AVX512-BF16), and more than doubles it on CPUs that emulate it. A few passes over the run's own
batch are timed, without an update.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outrider.torch.training.objective import Objective

ROUNDS = 3
"""Timed passes of each precision, after one to warm up; the fastest counts."""
CLEAR = 1.5
"""Timing stops once one precision is this many times slower."""
GAIN = 0.95
"""bfloat16 is chosen if it takes less than this share of the time of float32."""


@dataclass(frozen=True)
class PrecisionChoice:
    """A precision, and the seconds of a pass over one batch in each."""

    precision: str
    seconds: dict[str, float]

    def __str__(self) -> str:
        times = ", ".join(f"{name} {1000 * t:,.0f} ms" for name, t in self.seconds.items())
        return f"precision: {self.precision}, measured on this machine ({times} a batch)"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """Compute matrix products in `precision`; weights and sums stay float32."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def choose_precision(
    model: nn.Module, objective: Callable[[], Objective], inputs: dict[str, Tensor]
) -> PrecisionChoice:
    """Time forward and backward passes over a batch; the model is unchanged."""
    device = next(model.parameters()).device
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
    seconds = {"float32": float("inf"), "bfloat16": float("inf")}
    with _preserved(model):
        for round_ in range(ROUNDS + 1):
            for precision in seconds:
                try:
                    elapsed = _pass(model, objective(), inputs, precision, device)
                except RuntimeError:  # no bfloat16 on this device
                    if precision == "float32":
                        raise
                    continue
                if round_:
                    seconds[precision] = min(seconds[precision], elapsed)
            if round_ and max(seconds.values()) > CLEAR * min(seconds.values()):
                break
    faster = seconds["bfloat16"] < GAIN * seconds["float32"]
    timed = {name: elapsed for name, elapsed in seconds.items() if elapsed < float("inf")}
    return PrecisionChoice("bfloat16" if faster else "float32", timed)


def _pass(
    model: nn.Module,
    objective: Objective,
    inputs: dict[str, Tensor],
    precision: str,
    device: torch.device,
) -> float:
    objective.set_progress(0.0)
    _wait(device)
    start = time.perf_counter()
    with autocast(precision, device):
        loss = objective.loss(model, inputs, divisor=objective.count(inputs), smoothing=0.1)
    torch.autograd.backward(loss)
    _wait(device)
    elapsed = time.perf_counter() - start
    model.zero_grad(set_to_none=True)
    return elapsed


@contextmanager
def _preserved(model: nn.Module) -> Iterator[None]:
    """Restore buffers, gradients, random state and mode at the end."""
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
