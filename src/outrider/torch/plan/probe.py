"""Small training steps of the real model, from which memory and FLOPs of any batch follow.

Rows of a batch are independent, so at a fixed length every tensor either has a row dimension or a
constant size: bytes and FLOPs are `fixed + rows * per_row`, for every attention, for chunked
recomputation and for reversible layers. Two small batches give both numbers. The length is that of
the plan and is not extrapolated. Halting, skipped tokens and padding may differ in training.

Weights are allocated once at their real size, so a plan must fit into this machine.

`Live` counts FLOPs and the bytes of live tensors. It sees every operation below autograd. A storage
is recorded when it is created and dropped when it is freed, so the rest after a forward pass is
exactly what the backward pass needs. `torch.autograd.graph.saved_tensors_hooks` would miss inputs
kept for recomputation (`feedforward_chunks`) and count tensors that a reversible layer has freed.

Weights and activations are assigned to parts by module path: `decoder.attention.sliding`,
`decoder.cross`, `decoder.feedforward`; everything else to the model's child, such as `tokens` or
`encoder`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from outrider.torch.models import Drafter
from outrider.torch.models.ctc import Ctc
from outrider.torch.nn.attention import AttentionBase
from outrider.torch.nn.layer.block import Block
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.objective import Objective
from outrider.torch.training.precision import autocast

_ATEN = torch.ops.aten


def _attention_flops(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(q.shape, k.shape, v.shape))  # type: ignore[no-untyped-call]


def _attention_backward_flops(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any
) -> int:
    shapes = (g.shape, q.shape, k.shape, v.shape)
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


_CPU: dict[Any, Callable[..., int]] = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}
"""CPU attention operators, which PyTorch's counter does not cover."""


def _tensors(values: Any) -> list[Tensor]:
    leaves = tree_leaves(values)
    return [x for x in leaves if isinstance(x, Tensor) and x.layout is torch.strided]


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts FLOPs and tracks the tensors created inside its context."""

    def __init__(self, part: Callable[[], str]) -> None:
        """`part` returns the part of the model that is running."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.peak = 0
        """Peak of live bytes."""
        self.left_out: set[torch.Size] = set()
        """Shapes that are not counted, such as those of weight gradients."""
        self._part = part
        self._made: dict[int, tuple[Any, int, str]] = {}
        """Weak references to storages, their bytes and parts."""

    def held(self) -> Counter[str]:
        """Return the live bytes by part."""
        self._made = {key: made for key, made in self._made.items() if not made[0].expired()}
        counter: Counter[str] = Counter()
        for _, nbytes, part in self._made.values():
            counter[part] += nbytes
        return counter

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and track its outputs."""
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if packet in _CPU:
            self.flops += _CPU[packet](*args)
        elif packet in flop_registry:
            count: Any = flop_registry[packet]
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        inputs = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(out):
            if tensor.untyped_storage()._cdata not in inputs:  # not a view or in-place
                self._track(tensor)
        return out

    def _track(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._made or tensor.shape in self.left_out:
            return
        weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self._made[key] = (weak, storage.nbytes(), self._part())
        self.peak = max(self.peak, self.held().total())


HEAD = "head"
"""The model's own operations: logits and loss."""


def part_paths(model: nn.Module) -> dict[str, str]:
    """Map module paths to the parts that start there."""
    parts = {name: name for name, _ in model.named_children()}
    for path, module in model.named_modules():
        if isinstance(module, Block):
            side = path.partition(".")[0]
            kind = getattr(module.attention, "attention", module.attention)
            name = getattr(kind, "kind", type(kind).__name__.lower())
            parts[f"{path}.attention"] = f"{side}.attention.{name}"
            parts[f"{path}.cross"] = f"{side}.cross"
            parts[f"{path}.feedforward"] = f"{side}.feedforward"
    return parts


def part_of(path: str, paths: dict[str, str]) -> str:
    """Return the innermost part that contains a module or weight."""
    while path and path not in paths:
        path = path.rpartition(".")[0]
    return paths.get(path, HEAD)


ROWS = (2, 4)
"""Rows of the two batches. The last row is padded, so that masks are counted."""


@dataclass(frozen=True)
class Affine:
    """An affine function of the number of rows."""

    fixed: float
    per_row: float

    @classmethod
    def through(cls, few: float, more: float) -> "Affine":
        """Return the line through the values at both `ROWS`."""
        slope = (more - few) / (ROWS[1] - ROWS[0])
        return cls(few - ROWS[0] * slope, slope)

    def at(self, rows: float) -> float:
        """Return the value for a number of rows."""
        return self.fixed + rows * self.per_row


@dataclass(frozen=True)
class Shape:
    """The shape of a run's batches."""

    length: int
    """Positions of a row's longer side, with padding."""
    vocab_size: int
    source: bool
    """Whether rows are pairs."""
    segment: int | None = None
    """Tokens of a segment, for a model with memory."""


@dataclass(frozen=True)
class Probe:
    """Memory and FLOPs of one step."""

    activations: dict[str, Affine]
    """Bytes kept for the backward pass, by part."""
    peaks: tuple[Affine, Affine]
    """Peak bytes in the forward and in the backward pass, without weights and their gradients."""
    forward_flops: float
    """Per row."""
    training_flops: float
    """Per row, forward and backward."""

    def kept(self, rows: float) -> float:
        """Return the bytes of all activations."""
        return sum(line.at(rows) for line in self.activations.values())

    def peak(self, rows: float) -> float:
        """Return the peak bytes of a step."""
        return max(line.at(rows) for line in self.peaks)


def make_batch(shape: Shape, rows: int, device: torch.device) -> dict[str, Tensor]:
    """Return a batch of random tokens."""
    draw = partial(torch.randint, min(4, shape.vocab_size - 1), shape.vocab_size)
    ids_BT = draw((rows, shape.length), device=device)
    if not shape.source:
        extra = int(shape.segment is not None)
        return {"input_ids": ids_BT, "labels": draw((rows, shape.length + extra), device=device)}
    mask_BT, labels_BT = torch.ones_like(ids_BT), draw((rows, shape.length), device=device)
    if rows > 1:
        mask_BT[-1, -1], labels_BT[-1, -1] = 0, IGNORED
    return {"input_ids": ids_BT, "attention_mask": mask_BT, "labels": labels_BT}


def run_loss(
    model: nn.Module, objective: Objective, batch: dict[str, Tensor], precision: str
) -> Tensor:
    """Run one forward pass as in training."""
    objective.set_progress(0.0)  # when most layers predict
    with autocast(precision, next(model.parameters()).device):
        count = float(objective.count(batch))
        return objective.loss(model, batch, divisor=count, smoothing=0.1)


def probe_step(
    model: nn.Module, objective: Callable[[], Objective], shape: Shape, precision: str
) -> Probe:
    """Run two small steps; the model has no gradients afterwards."""
    model.train()
    with _running_part(model) as part:
        # The first pass is not counted: it fills caches, such as tables of sines.
        _run(model, objective(), shape, precision, ROWS[0], Live(part))
        live = Live(part)
        few, more = (_run(model, objective(), shape, precision, rows, live) for rows in ROWS)
    names = few.kept.keys() | more.kept.keys()
    return Probe(
        {name: Affine.through(few.kept[name], more.kept[name]) for name in sorted(names)},
        (
            Affine.through(few.forward_peak, more.forward_peak),
            Affine.through(few.backward_peak, more.backward_peak),
        ),
        more.forward / ROWS[1],
        more.training / ROWS[1],
    )


def weights_beside(model: nn.Module) -> list[Tensor]:
    """Return the frozen weights of a target that are not the model's parameters."""
    if not isinstance(model, Drafter | Ctc):
        return []
    own = set(model.parameters())
    return [weight for weight in model.target.parameters() if weight not in own]


@dataclass(frozen=True)
class _Pass:
    kept: dict[str, int]
    forward_peak: int
    backward_peak: int
    forward: int
    training: int


def _run(
    model: nn.Module, objective: Objective, shape: Shape, precision: str, rows: int, live: Live
) -> _Pass:
    weights = list(model.parameters())
    batch = make_batch(shape, rows, weights[0].device)
    live.flops, live.peak, live.left_out = 0, live.held().total(), set()
    with live:
        loss = run_loss(model, objective, batch, precision)
    kept, peak, forward = live.held(), live.peak, live.flops
    live.peak, live.left_out = kept.total(), {weight.shape for weight in weights}
    with live, _without_gradients(weights):
        loss.backward()  # type: ignore[no-untyped-call]
    return _Pass(kept, peak, live.peak, forward, live.flops)


@contextmanager
def _running_part(model: nn.Module) -> Iterator[Callable[[], str]]:
    """Yield a function that returns the part of the model that is running."""
    paths, running = part_paths(model), [HEAD]
    hooks = []
    for path, module in model.named_modules():
        # Hooks on an attention would change its path; those of its layer suffice.
        if path and not isinstance(module, AttentionBase):
            name = part_of(path, paths)
            enter = partial(lambda name, *_: running.append(name), name)
            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(lambda *_: running.pop() and None))
    try:
        yield lambda: running[-1]
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _without_gradients(weights: Sequence[Tensor]) -> Iterator[None]:
    """Drop every gradient as soon as it is computed."""

    def drop(weight: Tensor) -> None:
        weight.grad = None

    hooks = [
        weight.register_post_accumulate_grad_hook(drop)  # type: ignore[no-untyped-call]
        for weight in weights
        if weight.requires_grad
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
