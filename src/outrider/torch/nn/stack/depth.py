"""Shared depth (Universal Transformer, Dehghani et al., 2018, arXiv:1807.03819).

    s^t = block(s^{t-1} + coordinates(t))        t = 1 ... steps, one block for all

The steps are the layers of the model. Each has its own cache, because keys and values of a token
differ between steps. Keys and values of the source do not, so they are computed once.
"""

from collections.abc import Sequence

from outrider.torch.nn.layer.block import Block
from outrider.torch.nn.layer.heads import Source
from outrider.torch.nn.norm import Norm
from outrider.torch.nn.position.coordinate import CoordinatePosition
from outrider.torch.nn.stack import Stack


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
