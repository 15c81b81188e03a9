"""A stack of layers, with a final norm for pre-norm layers.

`SharedStack` has shared depth (Universal Transformer, Dehghani et al., 2018, arXiv:1807.03819).

    s^t = block(s^{t-1} + coordinates(t))        t = 1 ... steps, one block for all

The steps are the layers of the model. Each has its own cache, because keys and values of a token
differ between steps. Keys and values of the source do not, so they are computed once.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from outrider.torch.nn.cache import SLACK, Cache, Step
from outrider.torch.nn.layer.block import Block
from outrider.torch.nn.layer.heads import Source
from outrider.torch.nn.norm import Norm
from outrider.torch.nn.position import Positions
from outrider.torch.nn.position.bucketed import BucketedBias
from outrider.torch.nn.position.coordinate import CoordinatePosition

__all__ = ["Stack"]


class Stack(nn.Module):
    """An encoder, or a decoder with or without a source."""

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        norm: Norm | None,
        coordinate: CoordinatePosition | None = None,
    ) -> None:
        """Build a stack; `norm` follows the last layer."""
        super().__init__()
        self.coordinate = coordinate
        """Added before every layer except the first, whose input includes it."""
        self.blocks: Sequence[Block] = nn.ModuleList(blocks)  # type: ignore[assignment]
        self.norm = norm
        self.bias: BucketedBias | None = None
        """Score bias shared by all layers."""

    def forward(
        self,
        x_BTD: Tensor,
        positions: Positions,
        keep_BT: Tensor | None = None,
        sources: Sequence[Source | None] | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """Run a whole pass from position 0; `seen` collects the output of each layer."""
        steps = zip(self.path, self.spread(sources), strict=True)
        for layer, (block, source) in enumerate(steps):
            x_BTD = block(self.locate(x_BTD, positions, layer), positions, keep_BT, source)
            if seen is not None:
                seen.append(x_BTD)
        return x_BTD if self.norm is None else self.norm(x_BTD)

    def extend(
        self,
        x_BTD: Tensor,
        caches: Sequence[Cache],
        step: Step,
        sources: Sequence[Source | None],
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """Append tokens to the caches and run them through all layers; `seen` as in `forward`."""
        steps = zip(self.path, caches, self.spread(sources), strict=True)
        for layer, (block, cache, source) in enumerate(steps):
            x_BTD = block.extend(self.locate(x_BTD, step.positions, layer), cache, step, source)
            if seen is not None:
                seen.append(x_BTD)
        return x_BTD if self.norm is None else self.norm(x_BTD)

    @property
    def path(self) -> Sequence[Block]:
        """The layers in the order of execution."""
        return self.blocks

    def spread(self, sources: Sequence[Source | None] | None) -> Sequence[Source | None]:
        """Return the source of every executed layer."""
        return sources or [None] * len(self.path)

    def locate(self, x_BTD: Tensor, positions: Positions, layer: int) -> Tensor:
        """Add the position encodings of models that add them before every layer."""
        if self.coordinate is None or layer == 0:
            return x_BTD
        return self.coordinate(x_BTD, positions, layer)

    def sources(self, memory_BSD: Tensor, keep_BS: Tensor | None) -> list[Source]:
        """Project the encoder's output for the cross-attention of every layer."""
        return [block.cross.source(memory_BSD, keep_BS) for block in self.blocks if block.cross]

    def new_caches(self, rows: int, capacity: int, slack: int = SLACK) -> list[Cache]:
        """Return an empty cache per layer, for extends of up to `slack` tokens."""
        return [block.new_cache(rows, capacity, slack) for block in self.path]


class SharedStack(Stack):
    """One layer, applied several times; `blocks` has one element."""

    def __init__(
        self,
        block: Block,
        steps: int,
        *,
        norm: Norm | None,
        coordinate: CoordinatePosition | None = None,
    ) -> None:
        super().__init__([block], norm=norm, coordinate=coordinate)
        self.steps = steps

    @property
    def path(self) -> Sequence[Block]:
        """The layer, repeated for every step."""
        return [self.blocks[0]] * self.steps

    def spread(self, sources: Sequence[Source | None] | None) -> Sequence[Source | None]:
        """Repeat the source of the layer for every step."""
        return list(sources or [None]) * self.steps
