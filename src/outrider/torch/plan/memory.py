"""The memory of one device, part by part.

Training holds weights, AdamW's two moments and, in turn, what the forward pass keeps and the
gradients: while the backward makes these it lets go of the others, so the peak is

    accumulate = 1     weights + optimiser + max(step + first gradient, gradients)
    accumulate > 1     weights + optimiser + gradients + step

`step` is the most that one pass holds beside weights and gradients (`probe.Probe.peak`), the first
gradient that of the head, which comes while everything is still kept. Several devices (DDP) hold
all of it each, and the gradients a second time, in buckets that are sent around. In shares
(`train.shard`, FSDP2) each holds its part of weights, gradients and optimiser, and for a while

    gathered = what is in no layer + two layers (the next is fetched early) + a layer's gradients

This is what tensors need. An allocator that keeps freed blocks holds more, as new tensors do not
fit all holes: `lab/studies/plan_accuracy.py` says how much more the heap of a CPU holds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from outrider.torch.models import LanguageModel, Seq2Seq
from outrider.torch.plan.probe import Probe, part_of, part_paths, weights_beside
from outrider.torch.training.memory import gathered_parts

__all__ = ["Weights", "count_weights", "least_accumulate", "state_bytes", "training_peak"]

MOMENTS, STEP = 2, 4
"""Numbers of AdamW for each weight; bytes of the counter that it keeps for each tensor."""


@dataclass(frozen=True)
class Weights:
    """What a model holds whatever the batch."""

    parameters: dict[str, int]
    """By part; shared ones count once."""
    beside: int
    """Of a target that is held too."""
    weight_bytes: int
    """With buffers and the target's."""
    gradient_bytes: int
    optimiser_bytes: int
    largest_gradient: int
    gathered_bytes: int
    """The most that is there whole where each device has a share."""

    @property
    def total(self) -> int:
        """Parameters of the model itself."""
        return sum(self.parameters.values())


def count_weights(model: nn.Module) -> Weights:
    """Count a model that may lie on the meta device."""
    paths, parameters = part_paths(model), dict[str, int]()
    for path, weight in model.named_parameters():
        name = part_of(path, paths) if "." in path else path
        parameters[name] = parameters.get(name, 0) + weight.numel()
    beside = weights_beside(model)
    learns = [one for one in model.parameters() if one.requires_grad]
    gradients = sum(one.nbytes for one in learns)
    return Weights(
        parameters,
        sum(one.numel() for one in beside),
        sum(one.nbytes for one in [*model.parameters(), *model.buffers(), *beside]),
        gradients,
        MOMENTS * gradients + STEP * len(learns),
        max(one.nbytes for one in learns),
        _gathered(model),
    )


def _gathered(model: nn.Module) -> int:
    """Count what FSDP2 holds whole at once at most: the outermost part, and layers in turn."""
    known, parts = set[nn.Parameter](), list[int]()
    for part, _ in gathered_parts(model):  # inner parts first
        own = {one for one in part.parameters() if one not in known}
        known |= own
        parts.append(sum(one.nbytes for one in own))
    outer = sum(one.nbytes for one in model.parameters() if one not in known)
    return outer + 3 * max(parts) if parts else 2 * outer


def training_peak(
    weights: Weights, probe: Probe, rows: float, *, accumulate: int, ddp: bool, shares: int = 1
) -> int:
    """Return the most bytes that training holds on a device, one of `shares` if several."""
    if shares > 1:
        beside = weights.beside * 4  # a target is there whole
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
    """Return how often to halve an update's batch until it fits; None if a single row does not.

    `rows` are those of a pass, by what is accumulated.
    """
    accumulate = 1
    peak = partial(training_peak, weights, probe, ddp=ddp, shares=shares)
    while peak(rows(accumulate), accumulate=accumulate) > memory:
        if rows(accumulate) == 1:
            return None
        accumulate *= 2
    return accumulate


@torch.inference_mode()
def state_bytes(model: Seq2Seq | LanguageModel, length: int) -> int:
    """Return what one sequence of so many tokens holds while it is decoded: caches and source."""
    if isinstance(model, LanguageModel):
        return model.open(1, capacity=length).nbytes
    weight = model.tokens.weight
    memory_BSD = weight.new_zeros(1, length, weight.shape[1])
    state = model.open(memory_BSD, None, capacity=length)
    sources = [source for source in state.sources if source is not None]
    return state.nbytes + sum(one.k_BHSK.nbytes + one.v_BHSK.nbytes for one in sources)
