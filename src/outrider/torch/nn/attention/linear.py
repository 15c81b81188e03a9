"""Linear attention (Katharopoulos et al., 2020, arXiv:2006.16236): a running sum, not a softmax.

    y_i = f(q_i) . A_i / f(q_i) . b_i        A_i = sum_{j in S_i} f(k_j) v_j^T    b_i = sum f(k_j)
    f(x) = elu(x) + 1

    causal      S_i = {j : j <= i}
    two-sided   S_i = {all j that are not padding}

Weights are f(q_i) . f(k_j), so no query-key pairs are needed: time O(T K^2), memory O(T K). A
causal pass takes `CHUNK` tokens at once; tokens of a chunk interact as pairs, and with all earlier
ones through the sum. Decoding keeps this sum, K x (K + 1) numbers per head, and the tokens of the
last extend, which can still be rolled back.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.errors import ConfigError
from outrider.torch.nn.attention.base import AttentionBase, AttentionConfig, Cost
from outrider.torch.nn.cache import NO_POSITION, SLACK, Cache, CacheSpec, Step, join_rows

CHUNK = 64
"""Tokens of a chunk; their pairwise products cost about as much as those with the sum."""


@dataclass(frozen=True, kw_only=True)
class Config(AttentionConfig):
    """`kind: linear` has no options of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score == "dot":
            message = "'linear' can only do 'scaled_dot', the name of its own score; leave it out"
            raise ConfigError("attention.score", message)


class Attention(AttentionBase):
    """Attention through a running sum. There are no weights, so dropout has no effect."""

    config: Config
    columns_ok = False
    by_pairs = False
    skipping_ok = True

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Return True everywhere or, if causal, where j is not after i."""
        return j <= i if self.causal else torch.ones_like(i + j, dtype=torch.bool)

    def slots(self, capacity: int) -> int:
        """Return the size of the sum, (K + 1) / 2 tokens, and of one extend."""
        return min(capacity, SLACK) + (self.shape.width + 2) // 2

    def cost(self, length: int) -> Cost:
        """Return the cost; updating and reading the sum costs as much as K pairs per token."""
        sums = length * self.shape.width
        met = length * (min(CHUNK, length) + 1) // 2 if self.causal else 0
        return Cost(pairs=min(met + sums, length * length), slots=self.slots(length))

    def run(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Attend through one sum or, if causal, a sum that grows by chunks."""
        q_BGRTK, k_BGTK, v_BGTE = _features(q_BHTK, k_BGTK, v_BGTK)
        if self.causal:  # right padding is behind every real query
            return _divide(_run_causal(q_BGRTK, k_BGTK, v_BGTE), q_BHTK)
        if keep_BT is not None:
            k_BGTK = k_BGTK * keep_BT[:, None, :, None]
        sum_BGKE = k_BGTK.transpose(-1, -2) @ v_BGTE
        return _divide(q_BGRTK @ sum_BGKE[:, :, None], q_BHTK)

    def reference(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, *, keep_BT: Tensor | None = None
    ) -> Tensor:
        """Attend by the T x T weights."""
        q_BGRTK, k_BGTK, v_BGTE = _features(q_BHTK, k_BGTK, v_BGTK)
        keep = self._mask(q_BHTK.shape[2], q_BHTK.device)[None, None]
        if keep_BT is not None:
            keep = keep & keep_BT[:, None, None, None, :]
        weight_BGRTT = (q_BGRTK @ k_BGTK[:, :, None].transpose(-1, -2)) * keep
        return _divide(weight_BGRTT @ v_BGTE[:, :, None], q_BHTK)

    def new_cache(self, spec: CacheSpec) -> "SumCache":
        """Return an empty sum."""
        return SumCache(spec)

    def extend(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, cache: Cache, step: Step
    ) -> Tensor:
        """Append tokens and attend through the sum."""
        assert isinstance(cache, SumCache), "the cache of another kind"
        q_BGRTK, k_BGTK, v_BGTE = _features(q_BHTK, k_BGTK, v_BGTK)
        before_BGKE = cache.append(k_BGTK, v_BGTE, step)
        return _divide(_run_causal(q_BGRTK, k_BGTK, v_BGTE, before_BGKE), q_BHTK)


class SumCache:
    """The sum over all tokens except those of the last extend, and these tokens.

    Rollback needs no repair: tokens are added one extend later, when it is known which of them were
    kept.
    """

    def __init__(self, spec: CacheSpec) -> None:
        precise = torch.promote_types(spec.dtype, torch.float32)
        shape = (spec.rows, spec.heads, spec.width, spec.width + 1)
        self.sum_BGKE = torch.zeros(shape, dtype=precise, device=spec.device)
        self.k_BGTK = self.sum_BGKE.new_zeros(spec.rows, spec.heads, 0, spec.width)
        self.v_BGTE = self.sum_BGKE.new_zeros(spec.rows, spec.heads, 0, spec.width + 1)
        self.position_BT = torch.zeros(spec.rows, 0, dtype=torch.int64, device=spec.device)
        self.slack = spec.slack
        self.wraps = spec.slack < spec.capacity

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        parts = (self.sum_BGKE, self.k_BGTK, self.v_BGTE, self.position_BT)
        return sum(part.nbytes for part in parts)

    def append(self, k_BGTK: Tensor, v_BGTE: Tensor, step: Step) -> Tensor:
        """Store new tokens; return the sum over all tokens before them."""
        rows = len(k_BGTK)
        position_BT = step.positions.index_BT.expand(rows, -1)
        self._add(self.k_BGTK, self.v_BGTE, self.position_BT < position_BT[:, :1])
        before_BGKE = self.sum_BGKE
        if k_BGTK.shape[2] > self.slack:  # a first pass: only the newest can be rolled back
            newest_BC = step.newest(self.slack)
            self._add(k_BGTK, v_BGTE, position_BT < newest_BC.amin(1, keepdim=True))
            position_BT = torch.where(newest_BC < 0, NO_POSITION, newest_BC)
            at_BC = newest_BC.clamp(min=0)
            k_BGTK, v_BGTE = _pick(k_BGTK, at_BC), _pick(v_BGTE, at_BC)
        self.k_BGTK, self.v_BGTE, self.position_BT = k_BGTK, v_BGTE, position_BT
        return before_BGKE

    def select(self, row_N: Tensor, used: int) -> None:
        """Reorder, drop or copy rows."""
        self.sum_BGKE = self.sum_BGKE.index_select(0, row_N)
        self.k_BGTK = self.k_BGTK.index_select(0, row_N)
        self.v_BGTE = self.v_BGTE.index_select(0, row_N)
        self.position_BT = self.position_BT.index_select(0, row_N)

    def join(self, other: Self, place_N: Tensor, rows: int) -> None:
        """Write the rows of another cache to these indices."""
        self.sum_BGKE = join_rows(self.sum_BGKE, other.sum_BGKE, place_N, rows)
        self.k_BGTK = join_rows(self.k_BGTK, other.k_BGTK, place_N, rows)
        self.v_BGTE = join_rows(self.v_BGTE, other.v_BGTE, place_N, rows)
        position_BT = join_rows(self.position_BT, other.position_BT, place_N, rows, NO_POSITION)
        self.position_BT = position_BT
        self.slack = max(self.slack, other.slack)
        self.wraps = self.wraps or other.wraps

    def _add(self, k_BGTK: Tensor, v_BGTE: Tensor, kept_BT: Tensor) -> None:
        kept_BGTK = k_BGTK * kept_BT[:, None, :, None]
        self.sum_BGKE = self.sum_BGKE + kept_BGTK.transpose(-1, -2) @ v_BGTE


def _features(q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return f(q) by group, f(k), and values with a column of ones, whose sum is the divisor.

    At least float32, because the sums run over the whole text.
    """
    precise = torch.promote_types(q_BHTK.dtype, torch.float32)
    rows, groups = k_BGTK.shape[:2]
    q_BGRTK = q_BHTK.reshape(rows, groups, -1, *q_BHTK.shape[2:]).to(precise)
    v_BGTE = F.pad(v_BGTK.to(precise), (0, 1), value=1.0)
    return F.elu(q_BGRTK) + 1, F.elu(k_BGTK.to(precise)) + 1, v_BGTE


def _divide(sum_BGRTE: Tensor, like_BHTK: Tensor) -> Tensor:
    """Divide the sums by the sum of weights."""
    out_BGRTK = sum_BGRTE[..., :-1] / sum_BGRTE[..., -1:]
    return out_BGRTK.flatten(1, 2).to(like_BHTK.dtype)


def _run_causal(
    q_BGRTK: Tensor, k_BGTK: Tensor, v_BGTE: Tensor, before_BGKE: Tensor | None = None
) -> Tensor:
    """Return the causal sums of every query; `before_BGKE` is the sum over earlier tokens."""
    length = q_BGRTK.shape[3]
    q, k, v = _cut(q_BGRTK), _cut(k_BGTK)[:, :, None], _cut(v_BGTE)[:, :, None]
    out = (q @ k.transpose(-1, -2)).tril() @ v
    if length > CHUNK or before_BGKE is not None:
        sums = k[:, :, :, :-1].transpose(-1, -2) @ v[:, :, :, :-1]
        sums = F.pad(sums, (0, 0, 0, 0, 1, 0)).cumsum(3)
        if before_BGKE is not None:
            sums = sums + before_BGKE[:, :, None, None]
        out = out + q @ sums
    return out.flatten(3, 4)[:, :, :, :length]


def _cut(x: Tensor) -> Tensor:
    """Cut [..., T, K] into [..., N, CHUNK, K]; a short sequence is one chunk."""
    *outer, length, width = x.shape
    chunk = min(CHUNK, length)
    padded = F.pad(x, (0, 0, 0, -length % chunk))
    return padded.reshape(*outer, -1, chunk, width)


def _pick(x_BGTK: Tensor, at_BC: Tensor) -> Tensor:
    index_BGCK = at_BC[:, None, :, None].expand(*x_BGTK.shape[:2], -1, x_BGTK.shape[3])
    return x_BGTK.gather(2, index_BGCK)
