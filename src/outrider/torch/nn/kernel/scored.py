"""Attention with other scores or normalisers, for every pattern.

    y_i = sum_{j in S_i} w_ij v_j        w_i = normalise_{j in S_i}(s(q_i, k_j) + a_i . b_j)

The pattern is given as a predicate; `nn/kernel/blockwise.py` computes. The cache holds mapped keys,
so each step maps only its own tokens.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from outrider.torch.nn.cache import LayerCache, Pattern, Step
from outrider.torch.nn.kernel.blockwise import Scoring, blockwise, dense
from outrider.torch.nn.score import ScoreBase


class WholePattern(Pattern, Protocol):
    """The visible keys of an attention's queries, by head, and bounds on them."""

    def heads_see(self, i: Tensor, j: Tensor) -> Tensor:
        """Return the pattern of every head, [H or 1, ...]."""
        ...

    def reach(self, first: int, last: int, length: int) -> tuple[int, int]:
        """Return bounds of the keys that queries first to last - 1 may see."""
        ...


class Scored(nn.Module):
    """Attention with a score and a normaliser under a pattern."""

    def __init__(self, score: ScoreBase, normaliser: str) -> None:
        super().__init__()
        self.score = score
        self.normaliser = normaliser

    def forward(
        self,
        pattern: WholePattern,
        q_BHTK: Tensor,
        k_BGTK: Tensor,
        v_BGTK: Tensor,
        keep_BT: Tensor | None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Run a whole pass, block by block."""
        scoring = self._scoring(pattern, q_BHTK, keep_BT, dropout)
        return blockwise(scoring, self.queries(q_BHTK), self.keys(k_BGTK), v_BGTK)

    def reference(
        self,
        pattern: WholePattern,
        q_BHTK: Tensor,
        k_BGTK: Tensor,
        v_BGTK: Tensor,
        keep_BT: Tensor | None,
    ) -> Tensor:
        """Run a whole pass, all pairs at once."""
        scoring = self._scoring(pattern, q_BHTK, keep_BT, 0.0)
        return dense(scoring, self.queries(q_BHTK), self.keys(k_BGTK), v_BGTK)

    def extend(
        self,
        pattern: WholePattern,
        q_BHTK: Tensor,
        k_BGTK: Tensor,
        v_BGTK: Tensor,
        cache: LayerCache,
        step: Step,
    ) -> Tensor:
        """Append tokens to every row of the cache and attend from them."""
        q, k, v = self.queries(q_BHTK), self.keys(k_BGTK), v_BGTK
        if step.fresh:
            cache.fill(k, v, step)
            return blockwise(self._scoring(pattern, q, None, 0.0), q, k, v)
        slots = step.slots(pattern, cache.size)
        k, v = cache.write(k, v, slots)
        i_BT = step.positions.index_BT
        slot_C = torch.arange(slots.read, device=q.device)
        j_BC = i_BT[:, -1:] - (i_BT[:, -1:] - slot_C) % cache.size
        keep = slots.keep
        if keep is None:
            keep = torch.ones(1, 1, q.shape[2], slots.read, dtype=torch.bool, device=q.device)

        def visible(first: int, last: int) -> tuple[int, Tensor]:
            return 0, keep[:, :, first:last]

        return blockwise(Scoring(self.score, self.normaliser, visible, at=(i_BT, j_BC)), q, k, v)

    def queries(self, q_BHTE: Tensor) -> Tensor:
        """Map queries; the bias columns were scaled for scaled dot, which is undone here."""
        width, whole = self.score.width, q_BHTE.shape[-1]
        if whole == width:
            return self.score.queries(q_BHTE)
        mapped = self.score.queries(q_BHTE[..., :width] * (width / whole) ** 0.5)
        return torch.cat([mapped, q_BHTE[..., width:] * whole**-0.5], dim=-1)

    def keys(self, k_BGTE: Tensor) -> Tensor:
        """Map keys; bias columns are unchanged."""
        width = self.score.width
        if k_BGTE.shape[-1] == width:
            return self.score.keys(k_BGTE)
        return torch.cat([self.score.keys(k_BGTE[..., :width]), k_BGTE[..., width:]], dim=-1)

    def _scoring(
        self, pattern: WholePattern, q_BHTK: Tensor, keep_BT: Tensor | None, dropout: float
    ) -> Scoring:
        length, device = q_BHTK.shape[2], q_BHTK.device

        def visible(first: int, last: int) -> tuple[int, Tensor]:
            start, end = pattern.reach(first, last, length)
            i_T1 = torch.arange(first, last, device=device)[:, None]
            keep = pattern.heads_see(i_T1, torch.arange(start, end, device=device))[None]
            if keep_BT is None:
                return start, keep
            # Padding sees nothing: tanh_exp is unbounded, and an overflow would spread as NaN.
            real_B1T1 = keep_BT[:, None, first:last, None]
            return start, keep & real_B1T1 & keep_BT[:, None, None, start:end]

        return Scoring(self.score, self.normaliser, visible, dropout=dropout)
