"""Local attention over an image (Image Transformer, Parmar et al., 2018, arXiv:1802.05751).

A sequence is an image of `columns` pixels per row in row-major order: token i is at row i div C and
column i mod C. The image is cut into blocks of R x W pixels; with a margin m

    S_i = {j : (block row) R - m <= row_j < (block row) R + R,
               (block column) W - m <= column_j < (block column) W + W + m}
    causal: and j <= i

so a query sees its own block and the margin above, to the left and to the right of it. Time
O(T (R + m) (W + 2 m) K): a block is one small dense product with its keys. Memory O(T K): the image
is processed in bands, and training recomputes a band instead of storing its keys. Decoding keeps
R + m image rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from outrider.errors import ConfigError
from outrider.torch.nn.attention.base import AttentionBase, AttentionConfig, Cost
from outrider.torch.nn.cache import SLACK
from outrider.torch.nn.kernel.dense import attend
from outrider.torch.nn.kernel.replay import Moment, Setting

DENSE_UP_TO = 3
"""Dense attention is used up to this many times the pairs of the blocks."""
BAND_TOKENS = 1024
"""Tokens of a band, if a block is not higher."""


@dataclass(frozen=True, kw_only=True)
class Config(AttentionConfig):
    """Options of `kind: local_2d`."""

    columns: int = 32
    """C: tokens in a row of the image."""
    block_rows: int = 8
    """Rows of a block of queries."""
    block_columns: int = 8
    """Columns of a block of queries."""
    margin: int = 4
    """m: pixels seen above a block, to its left and to its right."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("columns", 1), ("block_rows", 1), ("block_columns", 1), ("margin", 0)):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"attention.{name}", f"got {value}, expected {least} or more")
        if self.block_columns > self.columns:
            raise ConfigError(
                "attention.block_columns",
                f"got {self.block_columns}, expected at most the {self.columns} of `columns`",
            )

    @property
    def key_rows(self) -> int:
        """Rows of keys that a block sees."""
        return self.block_rows + self.margin

    @property
    def key_columns(self) -> int:
        """Columns of keys that a block sees, some of them possibly outside the image."""
        return self.block_columns + 2 * self.margin


class Attention(AttentionBase):
    """Attention to the own block of an image and its margin."""

    config: Config

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether j is in the block of i or its margin and, if causal, not after i."""
        config = self.config
        top = i // config.columns // config.block_rows * config.block_rows
        left = i % config.columns // config.block_columns * config.block_columns
        row, column = j // config.columns, j % config.columns
        near = (row >= top - config.margin) & (row < top + config.block_rows)
        near &= column >= left - config.margin
        near &= column < left + config.block_columns + config.margin
        return near & (j <= i) if self.causal else near

    def slots(self, capacity: int) -> int:
        """Return the slots of the rows within reach and of one extend."""
        config = self.config
        rows = (config.key_rows - 1) * config.columns
        along = min(config.columns, config.block_columns + config.margin) - 1
        return min(capacity, rows + along + SLACK)

    def cost(self, length: int) -> Cost:
        """Count the pairs of every query: full rows above its own, and the rest."""
        config = self.config
        i = torch.arange(length)
        row, column = i // config.columns, i % config.columns
        top = (row // config.block_rows * config.block_rows - config.margin).clamp(min=0)
        first = column // config.block_columns * config.block_columns - config.margin
        end = (first + config.key_columns).clamp(max=config.columns)
        first = first.clamp(min=0)
        if self.causal:
            pairs = (row - top) * (end - first) + column - first + 1
        else:
            whole, rest = divmod(length, config.columns)
            below = row // config.block_rows * config.block_rows + config.block_rows
            pairs = (below.clamp(max=whole) - top) * (end - first)
            pairs = pairs + (below > whole) * (end.clamp(max=rest) - first).clamp(min=0)
        return Cost(pairs=int(pairs.sum()), slots=self.slots(length))

    def run(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Attend in blocks if that is faster, else in one dense pass."""
        if self.causal:
            keep_BT = None  # right padding is behind every real query
        length, config = q_BHTK.shape[2], self.config
        down, across = self._blocks(length)
        queries = config.block_rows * config.block_columns
        pairs = down * across * queries * config.key_rows * config.key_columns
        if length * length <= DENSE_UP_TO * pairs:
            return self.reference(q_BHTK, k_BGTK, v_BGTK, keep_BT=keep_BT)
        return self._blocked(q_BHTK, k_BGTK, v_BGTK, keep_BT)

    def _blocks(self, length: int) -> tuple[int, int]:
        """Return the number of blocks from top to bottom and from left to right."""
        rows = -(-length // self.config.columns)
        down = -(-rows // self.config.block_rows)
        return down, -(-self.config.columns // self.config.block_columns)

    def _blocked(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None
    ) -> Tensor:
        """Attend band by band; a band of blocks also sees the rows of the margin above."""
        config = self.config
        if keep_BT is None:
            keep_BT = q_BHTK.new_ones(1, q_BHTK.shape[2], dtype=torch.bool)
        tokens, margin = config.block_rows * config.columns, config.margin * config.columns
        # A band is at least as high as the margin, so it sees one other band at most.
        tokens *= max(BAND_TOKENS // tokens, -(-margin // tokens), 1)
        bands = [
            (slice(start, start + tokens), slice(max(0, start - margin), start + tokens))
            for start in range(0, q_BHTK.shape[2], tokens)
        ]
        inputs = (q_BHTK, k_BGTK, v_BGTK, keep_BT[..., None])
        trains = torch.is_grad_enabled() and any(x.requires_grad for x in inputs[:3])
        if torch.compiler.is_compiling() or not trains or len(bands) == 1:
            return torch.cat([self._band(*_take(inputs, *band)) for band in bands], dim=2)
        out: Tensor = _Bands.apply(self._band, bands, *inputs)  # type: ignore[no-untyped-call]
        return out

    def _band(self, q_BHTK: Tensor, *keys: Tensor) -> Tensor:
        """Attend with each block of queries as a batch row over the keys of block and margin.

        `keys` are keys, values and the mask of real ones, including the margin above.
        """
        batch, heads, length, _ = q_BHTK.shape
        config = self.config
        margin = config.margin * config.columns

        def cut(x: Tensor) -> Tensor:
            x = F.pad(x, (0, 0, length + margin - x.shape[-2], 0))  # empty above the image
            return self._cut(x.flatten(0, -3), config.margin)

        k, v, real = (cut(x) for x in keys)
        # Batch rows are treated as heads, so that they share one mask.
        out = attend(
            self._cut(q_BHTK.flatten(0, 1), 0),
            k,
            v,
            keep=self._block_keep(length, real[..., 0], heads),
            dropout=self.active_dropout,
        )
        down, across = self._blocks(length)
        out = out.view(down, across, batch * heads, config.block_rows, config.block_columns, -1)
        out = out.permute(2, 0, 3, 1, 4, 5).flatten(3, 4)[:, :, :, : config.columns].flatten(1, 3)
        return out[:, :length].reshape(batch, heads, length, -1)

    def _cut(self, x_NTK: Tensor, margin: int) -> Tensor:
        """Cut an image with `margin` rows above into blocks and margins: [blocks, N, pixels, K]."""
        config = self.config
        down, across = self._blocks(x_NTK.shape[1] - margin * config.columns)
        height, width = config.block_rows, config.block_columns
        fill = (margin + down * height) * config.columns - x_NTK.shape[1]
        image = F.pad(x_NTK, (0, 0, 0, fill))
        image = image.view(len(x_NTK), -1, config.columns, x_NTK.shape[2])
        image = F.pad(image, (0, 0, margin, margin + across * width - config.columns))
        size = (height + margin, width + 2 * margin)
        if torch.compiler.is_compiling():  # the compiler derives its own gradient
            blocks = _windows(image, size, (height, width))
        else:
            blocks = _Windows.apply(image, size, (height, width))  # type: ignore[no-untyped-call]
        return blocks.flatten(3, 4).flatten(0, 1)

    def _block_keep(self, length: int, real_NBP: Tensor, heads: int) -> Tensor:
        """Return the mask of each block: [blocks, 1 or B H, queries, keys].

        All keys cut for a block are within reach; the mask covers padding and order.
        """
        inside = real_NBP.new_ones(1, length, 1)
        keep = real_NBP[:, :, None]
        if self.causal:
            keep = keep & self._order(keep.device)
        # A query outside the image sees all keys, so that its softmax is not NaN.
        keep = keep | ~self._cut(inside, 0)
        return keep if keep.shape[1] == 1 else keep.repeat_interleave(heads, dim=1)

    def _order(self, device: torch.device) -> Tensor:
        """Return whether a key of a block and its margin is not after a query: [queries, keys]."""
        config = self.config

        def place(rows: int, columns: int, margin: int) -> Tensor:
            row = torch.arange(rows, device=device)[:, None] - margin
            column = torch.arange(columns, device=device) - margin
            # Any row length that includes the margins keeps the row-major order.
            return (row * config.key_columns + column).flatten()

        query = place(config.block_rows, config.block_columns, 0)
        return place(config.key_rows, config.key_columns, config.margin) <= query[:, None]


class _Bands(torch.autograd.Function):
    """Attends band by band into one output.

    The backward recomputes each band and accumulates into whole gradients, so only one band is in
    memory at a time.
    """

    @staticmethod
    def forward(
        ctx: Any, run: Callable[..., Tensor], bands: Sequence[tuple[slice, slice]], *inputs: Tensor
    ) -> Tensor:
        """Run all bands."""
        ctx.run, ctx.bands = run, bands
        ctx.setting, ctx.moment = Setting.now(inputs[0]), Moment.now(inputs[0])
        ctx.save_for_backward(*inputs)
        out: Tensor | None = None
        for band in bands:
            piece = run(*_take(inputs, *band))
            if out is None:
                out = piece.new_empty(*inputs[0].shape[:3], piece.shape[3])
            out[:, :, band[0]] = piece
        assert out is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BHTK: Tensor) -> tuple[Tensor | None, ...]:
        """Run all bands again, each with its gradient."""
        inputs = ctx.saved_tensors
        grads = [torch.zeros_like(x) for x in inputs[:3]]
        with ctx.moment.again():
            for band in ctx.bands:
                *parts, real = _take(inputs, *band)
                parts = [part.detach().requires_grad_() for part in parts]
                with torch.enable_grad(), ctx.setting.again():
                    piece = ctx.run(*parts, real)
                band_grads = torch.autograd.grad(piece, parts, grad_BHTK[:, :, band[0]])
                places = (band[0], band[1], band[1])
                for grad, band_grad, place in zip(grads, band_grads, places, strict=True):
                    grad[:, :, place] += band_grad
        return None, None, *grads, None


def _take(inputs: Sequence[Tensor], queries: slice, keys: slice) -> tuple[Tensor, ...]:
    """Cut one band out of queries, keys, values and the mask."""
    q_BHTK, *others = inputs
    return (q_BHTK[:, :, queries], *(x[..., keys, :] for x in others))


def _windows(image_NXYK: Tensor, size: tuple[int, int], step: tuple[int, int]) -> Tensor:
    """Cut windows out of an image: [down, across, N, rows, columns, K]."""
    cut = image_NXYK.unfold(1, size[0], step[0]).unfold(2, size[1], step[1])
    return cut.permute(1, 2, 0, 4, 5, 3).contiguous()


class _Windows(torch.autograd.Function):
    """`_windows` with a faster gradient: that of `unfold` took a third of a training pass."""

    @staticmethod
    def forward(
        ctx: Any, image_NXYK: Tensor, size: tuple[int, int], step: tuple[int, int]
    ) -> Tensor:
        ctx.shape, ctx.step = image_NXYK.shape, step
        return _windows(image_NXYK, size, step)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        down, across, images, rows, columns, width = grad.shape
        height, breadth = ctx.step
        parts_down, parts_across = -(-rows // height), -(-columns // breadth)
        tall, broad = down + parts_down - 1, across + parts_across - 1
        total = grad.new_zeros(images, tall, height, broad, breadth, width)
        grad = grad.permute(2, 0, 3, 1, 4, 5)
        for y, x in product(range(parts_down), range(parts_across)):
            part = grad[:, :, y * height : (y + 1) * height]
            part = part[:, :, :, :, x * breadth : (x + 1) * breadth]
            total[:, y : y + down, : part.shape[2], x : x + across, : part.shape[4]] += part
        total = total.flatten(3, 4).flatten(1, 2)
        return total[:, : ctx.shape[1], : ctx.shape[2]], None, None
