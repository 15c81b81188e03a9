"""One training step of the real model, small, and what it says of any other number of rows.

Rows of a batch do not know each other, so at a fixed length every tensor is either a row's own or
of one size whatever the batch: bytes and FLOPs are `fixed + rows * per_row`, for every attention,
for recomputation in chunks and for reversible layers alike. Two small batches give both numbers.
Nothing is scaled in the length, where kinds differ: it is that of the plan. Two things are not
known beforehand and may differ: tokens that halt or are skipped, and padding.

Weights count as held once, at their real size, on this machine; a plan cannot be larger than that.

Counts what PyTorch computes and holds while it does: FLOPs, and the bytes of living tensors.

Every operation passes through here, below autograd. A tensor's storage is noted when it is made and
forgotten when nobody holds it any more, so after a forward pass what is left is exactly what the
backward will need, whoever keeps it. `torch.autograd.graph.saved_tensors_hooks` would see less and
more: not what a checkpoint keeps to compute again (`feedforward_chunks`), but what a reversible
layer has let go already.

Which part of a model a weight or an activation belongs to, by name.

A layer's parts are told apart, and attentions by their kind: `decoder.attention.sliding`,
`decoder.cross`, `decoder.feedforward`. Everything else goes under the model's own child, such as
`tokens` or `encoder`, whose norms and residuals stand beside its layers.
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
from outrider.torch.training.objectives import IGNORED, Objective
from outrider.torch.training.objectives.auxiliary import ScheduledObjective
from outrider.torch.training.precision import autocast

__all__ = [
    "HEAD",
    "Affine",
    "Live",
    "Probe",
    "Shape",
    "make_batch",
    "part_of",
    "part_paths",
    "probe_step",
    "run_loss",
    "weights_beside",
]

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
"""Attention as a CPU computes it, which PyTorch's own counter leaves out."""


def _tensors(values: Any) -> list[Tensor]:
    leaves = tree_leaves(values)
    return [one for one in leaves if isinstance(one, Tensor) and one.layout is torch.strided]


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, counts FLOPs and notes the tensors that are made."""

    def __init__(self, part: Callable[[], str]) -> None:
        """Start with nothing; `part` says whose tensors are made now."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.peak = 0
        """Most bytes held at once."""
        self.left_out: set[torch.Size] = set()
        """Shapes of tensors that are not counted, such as gradients of weights."""
        self._part = part
        self._made: dict[int, tuple[Any, int, str]] = {}
        """Weak references to storages, their bytes and parts."""

    def held(self) -> Counter[str]:
        """Return the bytes that are held now, by part."""
        self._made = {key: one for key, one in self._made.items() if not one[0].expired()}
        found: Counter[str] = Counter()
        for _, nbytes, part in self._made.values():
            found[part] += nbytes
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and note what came out."""
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if packet in _CPU:
            self.flops += _CPU[packet](*args)
        elif packet in flop_registry:
            count: Any = flop_registry[packet]
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        given = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(out):
            if tensor.untyped_storage()._cdata not in given:  # else it is a view, or was changed
                self._note(tensor)
        return out

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._made or tensor.shape in self.left_out:
            return
        weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self._made[key] = (weak, storage.nbytes(), self._part())
        self.peak = max(self.peak, self.held().total())


HEAD = "head"
"""What the model itself computes: the scores of all words and the loss."""


def part_paths(model: nn.Module) -> dict[str, str]:
    """Return the part of every module that begins one, by its path."""
    found = {name: name for name, _ in model.named_children()}
    for path, module in model.named_modules():
        if isinstance(module, Block):
            side = path.partition(".")[0]
            kind = getattr(module.attention, "attention", module.attention)
            name = getattr(kind, "kind", type(kind).__name__.lower())
            found[f"{path}.attention"] = f"{side}.attention.{name}"
            found[f"{path}.cross"] = f"{side}.cross"
            found[f"{path}.feedforward"] = f"{side}.feedforward"
    return found


def part_of(path: str, paths: dict[str, str]) -> str:
    """Return the innermost part that a module or a weight stands in."""
    while path and path not in paths:
        path = path.rpartition(".")[0]
    return paths.get(path, HEAD)


ROWS = (2, 4)
"""The last row is padded, as in nearly every batch: a mask is a tensor too."""


@dataclass(frozen=True)
class Affine:
    """A number that grows with the rows of a batch."""

    fixed: float
    per_row: float

    @classmethod
    def through(cls, few: float, more: float) -> "Affine":
        """Draw the line through what was found at both `ROWS`."""
        slope = (more - few) / (ROWS[1] - ROWS[0])
        return cls(few - ROWS[0] * slope, slope)

    def at(self, rows: float) -> float:
        """Return the number of so many rows."""
        return self.fixed + rows * self.per_row


@dataclass(frozen=True)
class Shape:
    """What a batch of this run is made of."""

    length: int
    """Positions of a row: of its longer side, with padding."""
    vocab_size: int
    source: bool
    """Rows are pairs."""
    segment: int | None = None
    """Tokens of a segment, for a model with memory."""


@dataclass(frozen=True)
class Probe:
    """What one step holds and computes."""

    activations: dict[str, Affine]
    """Bytes that the forward pass keeps for the backward, by part."""
    peaks: tuple[Affine, Affine]
    """Most bytes at once in the forward and in the backward pass, without weights and their
    gradients."""
    forward_flops: float
    """Of one row."""
    training_flops: float
    """Of one row, forward and backward."""

    def kept(self, rows: float) -> float:
        """Return the bytes of all parts together."""
        return sum(one.at(rows) for one in self.activations.values())

    def peak(self, rows: float) -> float:
        """Return the most bytes of a step of so many rows."""
        return max(one.at(rows) for one in self.peaks)


def make_batch(shape: Shape, rows: int, device: torch.device) -> dict[str, Tensor]:
    """Return random tokens as a batch holds them."""
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
    """Run one forward pass as training does."""
    if isinstance(objective, ScheduledObjective):
        objective.set_progress(0.0)  # when most layers predict
    with autocast(precision, next(model.parameters()).device):
        count = float(objective.count(batch))
        return objective.loss(model, batch, divisor=count, smoothing=0.1)


def probe_step(
    model: nn.Module, objective: Callable[[], Objective], shape: Shape, precision: str
) -> Probe:
    """Run two small steps; the model has no gradients after it."""
    model.train()
    with _naming(model) as part:
        # The first pass is not counted: it makes what parts remember, such as tables of sines,
        # which all models of a process share.
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
    """Return the weights of a target that are held too and do not learn."""
    if not isinstance(model, Drafter | Ctc):
        return []
    own = {id(one) for one in model.parameters()}
    return [one for one in model.target.parameters() if id(one) not in own]


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
    live.peak, live.left_out = kept.total(), {one.shape for one in weights}
    with live, _without_gradients(weights):
        loss.backward()  # type: ignore[no-untyped-call]
    return _Pass(kept, peak, live.peak, forward, live.flops)


@contextmanager
def _naming(model: nn.Module) -> Iterator[Callable[[], str]]:
    """Tell, while it is entered, which part of the model is running."""
    paths, running = part_paths(model), [HEAD]
    hooks = []
    for path, module in model.named_modules():
        # Attentions change their ways when someone listens to them; their layer tells as much.
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
    """Let go of every gradient as soon as it is there."""

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
