"""Speed of a device: measured by a few steps of the model, or from numbers of the user."""

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
from outrider.torch.training.objective import Objective

PASSES = 3
"""Timed passes after a warm-up; their median counts."""
MOST_TOKENS = 4096
"""Maximum tokens of a timed pass."""
DECODED = 32
"""Tokens decoded in a timed pass; later ones are assumed to take as long."""


@dataclass(frozen=True)
class GivenMachine:
    """The user's numbers about a device."""

    flops: float
    """Peak FLOP/s in the precision of training."""
    utilisation: float = 0.4
    """Share of the peak in training, overall."""
    decode_utilisation: float = 0.05
    """Share of the peak in decoding, which is limited by reading weights."""


@dataclass(frozen=True)
class Speed:
    """The speed of one device with this model."""

    token_seconds: float
    """Training time per token of a batch."""
    update_seconds: float
    """Time per update, independent of the batch."""
    sentences_per_second: float | None
    """In greedy decoding; None if the model does not decode alone."""


def given_speed(machine: GivenMachine, probe: Probe, shape: Shape, *, decodes: bool) -> Speed:
    """Compute the speed from the FLOPs of the model and of the device."""
    training = machine.flops * machine.utilisation
    decoding = machine.flops * machine.decode_utilisation / probe.forward_flops
    token = probe.training_flops / shape.length / training
    return Speed(token, 0.0, decoding if decodes else None)


def measure_training(
    model: nn.Module,
    objective: Callable[[], Objective],
    shape: Shape,
    train: TrainConfig,
    *,
    rows: int,
) -> tuple[float, float]:
    """Time a few training steps; return the seconds per token, and per update."""
    keep_memory()
    model.train()
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    device = trainable[0].device
    rows = max(1, min(rows, MOST_TOKENS // shape.length))
    optimizer = torch.optim.AdamW(trainable, lr=1e-6, fused=True)
    passes, updates = [], []
    for _ in range(PASSES + 1):
        batch = make_batch(shape, rows, device)
        start = _now(device)
        run_loss(model, objective(), batch, train.precision).backward()  # type: ignore[no-untyped-call]
        computed = _now(device)
        torch.nn.utils.clip_grad_norm_(trainable, train.clip or 1.0)
        optimizer.step()
        optimizer.zero_grad()
        passes.append((computed - start) / (rows * shape.length))
        updates.append(_now(device) - computed)
    return statistics.median(passes[1:]), statistics.median(updates[1:])


def measure_decoding(model: Seq2Seq | LanguageModel, shape: Shape, *, rows: int) -> float:
    """Decode a batch greedily with PyTorch; return sentences per second.

    Only DECODED tokens are decoded; the rest of a sentence is assumed to take as long per token.
    """
    backend, query = TorchBackend(model, frozen=True), Argmax()
    source = [[1] * shape.length if shape.source else []] * rows
    tokens = min(shape.length, DECODED)
    speeds = []
    for _ in range(PASSES):
        start = _now(backend.device)
        state = backend.encode(source, capacity=tokens)
        encoded = _now(backend.device)
        last = [[1]] * rows
        for _ in range(tokens):
            last = backend.extend(last, state, query).tokens
        step = (_now(backend.device) - encoded) / tokens
        speeds.append(rows / (encoded - start + step * shape.length))
    return statistics.median(speeds[1:])


def _now(device: torch.device) -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
