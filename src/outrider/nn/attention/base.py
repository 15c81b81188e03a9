"""The contract of an attention variant.

    y_i = sum_{j in S_i} w_ij v_j        w_i = softmax_{j in S_i}(q_i . k_j / sqrt(K))

A variant is a pattern S_i. It writes the pattern once, as the predicate `sees(i, j)`; from that
this base derives a reference and the masks of cached decoding. A variant adds what the predicate
cannot give: a forward that does not cost T x T, how many tokens decoding must remember, and its
cost. Projections, heads and rotary positions are not its business.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from outrider.nn.cache import LayerCache, Step
from outrider.nn.dense import attend

__all__ = ["AttentionBase", "AttentionConfig", "Cost"]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Options of a variant: frozen, hashable, plain values."""


class Cost(NamedTuple):
    """What a variant costs for a sequence of n tokens."""

    pairs: int
    """Query-key pairs scored by one whole pass of one head."""
    slots: int
    """Tokens whose keys and values decoding must keep."""


class AttentionBase(nn.Module):
    """Maps queries, keys and values to outputs under one pattern."""

    causal_ok: ClassVar[bool] = True
    """Can stand in a decoder, where j <= i."""
    two_sided_ok: ClassVar[bool] = True
    """Can stand in an encoder, where a query sees both sides."""

    def __init__(self, config: AttentionConfig, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.causal = causal
        self.dropout = dropout

    @property
    def key(self) -> object:
        """Equal for two attentions with the same pattern."""
        return type(self), self.config, self.causal

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether j is in S_i, for integer positions that broadcast together."""
        raise NotImplementedError

    def slots(self, capacity: int) -> int:
        """Slots needed to decode `capacity` tokens: as many, unless the pattern forgets."""
        return capacity

    def cost(self, length: int) -> Cost:
        """Return what a sequence of `length` tokens costs."""
        raise NotImplementedError

    def forward(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, *, keep_BT: Tensor | None = None
    ) -> Tensor:
        """One whole pass from position 0. `keep_BT` marks real tokens (right-padded rows)."""
        return self.reference(q_BHTK, k_BGTK, v_BGTK, keep_BT=keep_BT)

    def reference(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, *, keep_BT: Tensor | None = None
    ) -> Tensor:
        """The pattern as a dense T x T mask: right for every variant, quadratic."""
        position_T = torch.arange(q_BHTK.shape[2], device=q_BHTK.device)
        keep = self.sees(position_T[:, None], position_T[None, :])[None, None]
        if keep_BT is not None:
            keep = keep & keep_BT[:, None, None, :]
        return attend(q_BHTK, k_BGTK, v_BGTK, keep=keep, dropout=self.active_dropout)

    def extend(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, cache: LayerCache, step: Step
    ) -> Tensor:
        """Append tokens to every row of the cache and attend from them."""
        if step.fresh:
            cache.fill(k_BGTK, v_BGTK, step)
            return self(q_BHTK, k_BGTK, v_BGTK)
        slots = step.slots(self, cache.size)
        k_BGCK, v_BGCK = cache.write(k_BGTK, v_BGTK, slots)
        return attend(q_BHTK, k_BGCK, v_BGCK, keep=slots.keep)

    @property
    def active_dropout(self) -> float:
        """Dropout on attention weights: nothing outside training."""
        return self.dropout if self.training else 0.0
