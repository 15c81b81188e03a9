"""Shared depth (Universal Transformer, Dehghani et al., 2018, arXiv:1807.03819).

    s^t = block(s^{t-1} + coordinates(t))        t = 1 ... steps, one block for all

The steps are the layers of the model: each has a cache of its own, because a token's keys and
values differ from step to step. Keys and values of the source do not, so they are computed once.
"""

from collections.abc import Sequence

from torch import Tensor

from outrider.nn.cache import Cache, Step
from outrider.nn.layer.block import Block
from outrider.nn.layer.heads import Source
from outrider.nn.position import Positions
from outrider.nn.position.coordinate import CoordinatePosition
from outrider.nn.stack import Stack

__all__ = ["SharedStack"]


class SharedStack(Stack):
    """One layer, applied several times. `blocks` holds it once; so does `sources` its source."""

    def __init__(
        self,
        block: Block,
        steps: int,
        *,
        width: int,
        norm: str,
        coordinate: CoordinatePosition | None = None,
    ) -> None:
        super().__init__([block], width=width, norm=norm, coordinate=coordinate)
        self.steps = steps

    def forward(
        self,
        x_BTD: Tensor,
        positions: Positions,
        keep_BT: Tensor | None = None,
        sources: Sequence[Source | None] | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """One whole pass from position 0; `seen` collects what each step gave."""
        (block,), (source,) = self.blocks, sources or [None]
        for step in range(self.steps):
            x_BTD = block(self.locate(x_BTD, positions, step), positions, keep_BT, source)
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
        """Append tokens to the caches and run them through all steps; `seen` as in `forward`."""
        (block,), (source,) = self.blocks, sources
        for layer, cache in enumerate(caches):
            x_BTD = block.extend(self.locate(x_BTD, step.positions, layer), cache, step, source)
            if seen is not None:
                seen.append(x_BTD)
        return x_BTD if self.norm is None else self.norm(x_BTD)

    def new_caches(self, rows: int, capacity: int) -> list[Cache]:
        """Return an empty cache per step."""
        return [self.blocks[0].attention.new_cache(rows, capacity) for _ in range(self.steps)]
