"""The memory of one device, part by part.

Training holds weights, AdamW's two moments and, in turn, activations and gradients: the backward
pass frees the former while it makes the latter, so the peak is

    accumulate = 1     weights + optimizer + max(step + first gradient, gradients)
    accumulate > 1     weights + optimizer + gradients + step

`step` is the peak of one pass besides weights and gradients (`probe.Probe.peak`); the first
gradient is that of the head, when all activations still exist. With DDP every device holds all of
it, and a second copy of the gradients in communication buckets. With `train.shard` (FSDP2) each
holds its share of weights, gradients and optimizer, and temporarily

    gathered = weights outside layers + two layers (the next is prefetched) + a layer's gradients

This is the memory of tensors. An allocator that caches freed blocks needs more;
`lab/studies/plan_accuracy.py` measures how much on a CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from outrider.torch.plan.probe import Probe, Shape, part_of, part_paths, weights_beside
from outrider.torch.training.memory import gathered_parts

MOMENTS, STEP = 2, 4
"""Values of AdamW per weight, and bytes of its counter per tensor."""


@dataclass(frozen=True)
class Weights:
    """Memory of a model that does not depend on the batch."""

    parameters: dict[str, int]
    """By part; shared weights count once."""
    beside: int
    """Parameters of a frozen target."""
    weight_bytes: int
    """With buffers and the target."""
    gradient_bytes: int
    optimiser_bytes: int
    largest_gradient: int
    gathered_bytes: int
    """Peak of gathered weights if each device has a share."""

    @property
    def total(self) -> int:
        """Parameters of the model itself."""
        return sum(self.parameters.values())


def count_weights(model: nn.Module) -> Weights:
    """Count the weights of a model, which may be on the meta device."""
    paths, parameters = part_paths(model), dict[str, int]()
    for path, weight in model.named_parameters():
        name = part_of(path, paths) if "." in path else path
        parameters[name] = parameters.get(name, 0) + weight.numel()
    beside = weights_beside(model)
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    gradients = sum(weight.nbytes for weight in trainable)
    return Weights(
        parameters,
        sum(weight.numel() for weight in beside),
        sum(x.nbytes for x in [*model.parameters(), *model.buffers(), *beside]),
        gradients,
        MOMENTS * gradients + STEP * len(trainable),
        max(weight.nbytes for weight in trainable),
        _gathered(model),
    )


def _gathered(model: nn.Module) -> int:
    """Return the peak of gathered bytes with FSDP2: the outermost part, and layers in turn."""
    counted, parts = set[nn.Parameter](), list[int]()
    for part, _ in gathered_parts(model):  # inner parts first
        own = set(part.parameters()) - counted
        counted |= own
        parts.append(sum(weight.nbytes for weight in own))
    outer = sum(weight.nbytes for weight in set(model.parameters()) - counted)
    return outer + 3 * max(parts) if parts else 2 * outer


def training_peak(
    weights: Weights, probe: Probe, rows: float, *, accumulate: int, ddp: bool, shares: int = 1
) -> int:
    """Return the peak memory of training on one of `shares` devices."""
    if shares > 1:
        beside = weights.beside * 4  # a target is not sharded
        shared = weights.weight_bytes - beside + weights.optimiser_bytes + weights.gradient_bytes
        return int(shared / shares + beside + weights.gathered_bytes + probe.peak(rows))
    held = weights.weight_bytes + weights.optimiser_bytes + ddp * weights.gradient_bytes
    if accumulate > 1:
        return int(held + weights.gradient_bytes + probe.peak(rows))
    step = probe.peak(rows) + weights.largest_gradient
    return int(held + max(step, weights.gradient_bytes))


def least_accumulate(
    weights: Weights,
    probe: Probe,
    rows: Callable[[int], int],
    memory: float,
    *,
    ddp: bool,
    shares: int = 1,
) -> int | None:
    """Return the accumulation (a power of two) at which an update fits; None if no single row fits.

    `rows` maps the accumulation to the rows of a pass.
    """
    accumulate = 1
    peak = partial(training_peak, weights, probe, ddp=ddp, shares=shares)
    while peak(rows(accumulate), accumulate=accumulate) > memory:
        if rows(accumulate) == 1:
            return None
        accumulate *= 2
    return accumulate


@torch.inference_mode()
def state_bytes(model: Any, shape: Shape) -> int:
    """Return the bytes of one decoded sequence of the shape's length: caches and source."""
    if not shape.source:
        return int(model.open(1, capacity=shape.length).nbytes)
    weight = model.tokens.weight
    memory_BSD = weight.new_zeros(1, shape.length, weight.shape[1])
    state = model.open(memory_BSD, None, capacity=shape.length)
    sources = [source for source in state.sources if source is not None]
    return int(state.nbytes) + sum(
        source.k_BHSK.nbytes + source.v_BHSK.nbytes for source in sources
    )
