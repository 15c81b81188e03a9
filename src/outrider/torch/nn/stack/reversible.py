"""Reversible layers (Gomez et al., 2017, arXiv:1707.04585; Kitaev et al., 2020, arXiv:2001.04451).

    x_(n+1) = x_(n-1) + f_n(norm(x_n))        x_0 = x_(-1) = the input        n all parts in turn
    output  = (x_N + x_(N-1)) / 2
    back    x_(n-1) = x_(n+1) - f_n(norm(x_n))

There are two streams; every part reads one and adds to the other. The paper writes them in parallel
(y1 = x1 + attention(x2), y2 = x2 + feedforward(y1)); here they form one sequence over all parts.
Both streams begin as the input and the output is their mean, where the paper doubles the width.

Training stores only the two last states: the backward goes down the layers, subtracts the output of
each part and runs the part once more. Memory does not grow with depth, at the cost of a second
forward pass. Random numbers (dropout, hashes) are those of the first run.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from outrider.torch.nn.cache import Cache, Step
from outrider.torch.nn.kernel.replay import Moment, Setting
from outrider.torch.nn.layer.block import Block, Sublayer, Sublayers
from outrider.torch.nn.layer.heads import Source
from outrider.torch.nn.position import Positions
from outrider.torch.nn.stack import Stack

Sources = Sequence[Source | None]


class ReversibleStack(Stack):
    """Layers whose inputs are recomputed from their outputs."""

    def forward(
        self,
        x_BTD: Tensor,
        positions: Positions,
        keep_BT: Tensor | None = None,
        sources: Sources | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """Run a whole pass from position 0; `seen` collects the output of each layer."""
        zero = x_BTD.new_zeros(())
        layers = _Layers(
            self.blocks,
            lambda layer: self.blocks[layer].whole_pass(positions, keep_BT),
            lambda layer: self._code(zero, positions, layer),
        )
        means = _train(layers, x_BTD, sources or [None] * len(self.blocks), each=seen is not None)
        return self._finish(means, seen)

    def extend(
        self,
        x_BTD: Tensor,
        caches: Sequence[Cache],
        step: Step,
        sources: Sources,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """Append tokens to the caches and run them through all layers; `seen` as in `forward`."""
        zero = x_BTD.new_zeros(())
        layers = _Layers(
            self.blocks,
            lambda layer: self.blocks[layer].cached_pass(caches[layer], step),
            lambda layer: self._code(zero, step.positions, layer),
        )
        return self._finish(layers.means(x_BTD, sources, each=seen is not None), seen)

    def _finish(self, means: Sequence[Tensor], seen: list[Tensor] | None) -> Tensor:
        if seen is not None:
            seen.extend(means)
        return means[-1] if self.norm is None else self.norm(means[-1])

    def _code(self, zero: Tensor, positions: Positions, layer: int) -> Tensor | None:
        """Return the position encodings to add to both streams before this layer, if any."""
        if self.coordinate is None or layer == 0:
            return None
        return self.locate(zero, positions, layer)


class _Layers(NamedTuple):
    """The layers of one pass."""

    blocks: Sequence[Block]
    form: Callable[[int], Sublayers]
    """The sublayers of a layer in this pass."""
    code: Callable[[int], Tensor | None]
    """Position encodings added before a layer."""

    def parts(self, layer: int, source: Source | None) -> list[Sublayer]:
        """Return the functions f_n of one layer, in order."""
        form = self.form(layer)
        pairs = self.blocks[layer].parts(form.attention, source, form.transition)
        return [partial(residual.branch, part=part) for residual, part in pairs]

    def streams(
        self,
        x_BTD: Tensor,
        sources: Sources,
        run: Callable[[Sublayer, Tensor], Tensor] = lambda part, x_BTD: part(x_BTD),
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield x_(n-1) and x_n after every layer; `run` executes a part."""
        older = newer = x_BTD
        for layer, source in enumerate(sources):
            code = self.code(layer)
            if code is not None:
                older, newer = older + code, newer + code
            for part in self.parts(layer, source):
                older, newer = newer, older + run(part, newer).to(older.dtype)
            yield older, newer

    def means(self, x_BTD: Tensor, sources: Sources, *, each: bool) -> list[Tensor]:
        """Return the mean of both streams after every (or the last) layer, under plain autograd."""
        means: list[Tensor] = []
        for older, newer in self.streams(x_BTD, sources):
            means = [*(means if each else []), (older + newer) / 2]
        return means


def _train(layers: _Layers, x_BTD: Tensor, sources: Sources, *, each: bool) -> Sequence[Tensor]:
    """Return `means` with a backward that recomputes the layers."""
    weights = list(
        dict.fromkeys(weight for block in layers.blocks for weight in block.parameters())
    )
    read = [part for source in sources if source is not None for part in source[:2]]
    inputs = [x_BTD, *weights, *read]
    trains = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    if not trains or torch.compiler.is_compiling():  # a compiler has its own recomputation
        return layers.means(x_BTD, sources, each=each)
    keeps = [source.keep_BS for source in sources if source is not None]
    means: tuple[Tensor, ...] = _Reversible.apply(  # type: ignore[no-untyped-call]
        _Pass(layers, weights, keeps, each), *inputs
    )
    return means


class _Pass(NamedTuple):
    """Inputs of a pass without gradients."""

    layers: _Layers
    weights: list[nn.Parameter]
    keeps: list[Tensor | None]
    """Mask of each layer's source; empty without sources."""
    each: bool
    """Return the means after every layer, not only the last."""

    def sources(self, read: Sequence[Tensor]) -> list[Source | None]:
        """Rebuild the sources from keys and values."""
        if not self.keeps:
            return [None] * len(self.layers.blocks)
        pairs = zip(read[::2], read[1::2], self.keeps, strict=True)
        return [Source(k, v, keep) for k, v, keep in pairs]


class _Reversible(torch.autograd.Function):
    """All layers as one autograd function."""

    @staticmethod
    def forward(ctx: Any, given: _Pass, x_BTD: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run all layers and keep the two last states."""
        ctx.given, ctx.setting, ctx.moments = given, Setting.now(x_BTD), []
        sources = given.sources(tensors[len(given.weights) :])
        older = newer = x_BTD
        means: list[Tensor] = []

        def run(part: Sublayer, x_BTD: Tensor) -> Tensor:
            ctx.moments.append(Moment.now(x_BTD))
            # With gradients, as in the backward, so that the same code runs.
            with torch.enable_grad(), ctx.setting.again():
                return part(x_BTD.detach().requires_grad_()).detach()

        for older, newer in given.layers.streams(x_BTD, sources, run):
            means = [*(means if given.each else []), (older + newer) / 2]
        ctx.save_for_backward(older, newer, *tensors)
        ctx.set_materialize_grads(False)
        return tuple(means)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_means: Tensor | None) -> tuple[Tensor | None, ...]:
        """Recompute and differentiate layer by layer, from the last."""
        older, newer, *tensors = ctx.saved_tensors
        walk = _Backward(ctx.given, ctx.setting, ctx.moments, tensors, (older, newer))
        layers = len(ctx.given.layers.blocks)
        grads = [None] * (layers - len(grad_means)) + list(grad_means)
        for layer in reversed(range(layers)):
            walk.receive(grads[layer])
            walk.undo(layer)
        return None, walk.grad_older + walk.grad_newer, *walk.sums


class _Backward:
    """State of the backward pass: the two streams, their gradients, and those of other tensors."""

    def __init__(
        self,
        given: _Pass,
        setting: Setting,
        moments: Sequence[Moment],
        tensors: Sequence[Tensor],
        streams: tuple[Tensor, Tensor],
    ) -> None:
        self.given, self.setting, self._moments = given, setting, list(moments)
        self.older, self.newer = streams
        self.grad_older, self.grad_newer = (torch.zeros_like(x) for x in streams)
        self.sums: list[Tensor | None] = [None] * len(tensors)
        self._place = {weight: index for index, weight in enumerate(given.weights)}
        self._read = [
            x.detach().requires_grad_(x.requires_grad) for x in tensors[len(given.weights) :]
        ]
        self._sources = given.sources(self._read)

    def receive(self, grad_mean: Tensor | None) -> None:
        """Add the gradient of the mean of both streams."""
        if grad_mean is not None:
            self.grad_older = self.grad_older + grad_mean / 2
            self.grad_newer = self.grad_newer + grad_mean / 2

    def undo(self, layer: int) -> None:
        """Go back to the state before a layer."""
        wanted: dict[int, Tensor] = {
            self._place[weight]: weight
            for weight in self.given.layers.blocks[layer].parameters()
            if weight.requires_grad
        }
        if self._read:
            first = len(self.given.weights)
            places = range(2 * layer, 2 * layer + 2)
            wanted |= {first + n: self._read[n] for n in places if self._read[n].requires_grad}
        for part in reversed(self.given.layers.parts(layer, self._sources[layer])):
            self._undo_part(part, wanted)
        code = self.given.layers.code(layer)
        if code is not None:
            self.older, self.newer = self.older - code, self.newer - code

    def _undo_part(self, part: Sublayer, wanted: dict[int, Tensor]) -> None:
        with torch.enable_grad(), self.setting.again(), self._moments.pop().again():
            x_BTD = self.older.detach().requires_grad_()
            y_BTD = part(x_BTD).to(x_BTD.dtype)
        inputs = [x_BTD, *wanted.values()]
        grads: Sequence[Tensor | None] = torch.autograd.grad(
            y_BTD, inputs, self.grad_newer, allow_unused=True
        )
        self.older, self.newer = self.newer - y_BTD.detach(), self.older
        grad_x = grads[0]
        through = self.grad_older if grad_x is None else self.grad_older + grad_x
        self.grad_older, self.grad_newer = self.grad_newer, through
        for place, grad in zip(wanted, grads[1:], strict=True):
            if grad is not None:
                before = self.sums[place]
                self.sums[place] = grad if before is None else before + grad
