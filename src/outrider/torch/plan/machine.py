"""How fast a device is: a few real steps of this very model on this machine, or numbers by hand."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from outrider.decoding.queries import Argmax
from outrider.run_config import TrainConfig
from outrider.torch.backend import TorchBackend
from outrider.torch.models import LanguageModel, Seq2Seq
from outrider.torch.plan.probe import Probe, Shape, make_batch, run_loss
from outrider.torch.training.memory import keep_memory
from outrider.torch.training.objectives import Objective

__all__ = ["GivenMachine", "Speed", "given_speed", "measure_decoding", "measure_training"]

PASSES = 3
"""Passes that are timed after one that warms up; their median counts."""
MOST_TOKENS = 4096
"""Of a pass that is timed; longer ones take as long a token."""
DECODED = 32
"""Tokens that are decoded; further ones take as long."""


@dataclass(frozen=True)
class GivenMachine:
    """What somebody says of a device."""

    flops: float
    """A second, at best, in the precision that is trained in."""
    utilisation: float = 0.4
    """Share of them that training reaches, everything included."""
    decode_utilisation: float = 0.05
    """Share of them that decoding reaches, which waits for weights to be read."""


@dataclass(frozen=True)
class Speed:
    """What one device does of this model."""

    token_seconds: float
    """Of training, for each token of a batch."""
    update_seconds: float
    """Of each update, whatever the batch."""
    sentences_per_second: float | None
    """Decoded greedily; None where the model does not decode by itself."""


def given_speed(machine: GivenMachine, probe: Probe, shape: Shape, *, decodes: bool) -> Speed:
    """Divide the FLOPs of this model by those of the device."""
    reached = machine.flops * machine.utilisation
    decoding = machine.flops * machine.decode_utilisation / probe.forward_flops
    token = probe.training_flops / shape.length / reached
    return Speed(token, 0.0, decoding if decodes else None)


def measure_training(
    model: nn.Module,
    objective: Callable[[], Objective],
    shape: Shape,
    train: TrainConfig,
    *,
    rows: int,
) -> tuple[float, float]:
    """Time a few training steps: the seconds of a token, and those of an update."""
    keep_memory()
    model.train()
    learns = [one for one in model.parameters() if one.requires_grad]
    device = learns[0].device
    rows = max(1, min(rows, MOST_TOKENS // shape.length))
    optimizer = torch.optim.AdamW(learns, lr=1e-6, fused=True)
    passes, updates = [], []
    for _ in range(PASSES + 1):
        batch = make_batch(shape, rows, device)
        began = _now(device)
        run_loss(model, objective(), batch, train.precision).backward()  # type: ignore[no-untyped-call]
        computed = _now(device)
        torch.nn.utils.clip_grad_norm_(learns, train.clip or 1.0)
        optimizer.step()
        optimizer.zero_grad()
        passes.append((computed - began) / (rows * shape.length))
        updates.append(_now(device) - computed)
    return statistics.median(passes[1:]), statistics.median(updates[1:])


def measure_decoding(model: Seq2Seq | LanguageModel, shape: Shape, *, rows: int) -> float:
    """Decode a batch greedily with PyTorch and return its sentences a second.

    Some tokens are decoded; the rest of a longer sentence is taken to be as fast.
    """
    backend, ask = TorchBackend(model, frozen=True), Argmax()
    source = [[1] * shape.length if shape.source else []] * rows
    tokens = min(shape.length, DECODED)
    found = []
    for _ in range(PASSES):
        began = _now(backend.device)
        state = backend.encode(source, capacity=tokens)
        encoded = _now(backend.device)
        newest = [[1]] * rows
        for _ in range(tokens):
            newest = backend.extend(newest, state, ask).tokens
        step = (_now(backend.device) - encoded) / tokens
        found.append(rows / (encoded - began + step * shape.length))
    return statistics.median(found[1:])


def _now(device: torch.device) -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
