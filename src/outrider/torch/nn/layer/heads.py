"""Multi-head attention: projections around an attention variant.

    self-attention    out(gate(x) * attention(q, k, v))         gate only with `head_gate: glu`
    columns           s(i, j) = q_i . k_j / sqrt(K) + a_i . b_j
    cross-attention   out(gate(x) * sum_j w_ij v_j)    w_i = normalise_j(s(q_i, k_j)), j all sources

Position biases are further columns of queries and keys (`outrider.torch.nn.position`), so
every variant and every kernel supports them unchanged. Values get as many zero columns, because the
linear-memory kernels need equal widths.

Queries, keys and values of self-attention come from one matrix product; keys and values of
cross-attention are computed once per source and shared by every step.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.torch.nn.attention.base import AttentionBase, AttentionConfig
from outrider.torch.nn.cache import SLACK, Cache, CacheSpec, LayerCache, Step
from outrider.torch.nn.cache.ring import RingedCache
from outrider.torch.nn.kernel.blockwise import Scoring, blockwise
from outrider.torch.nn.kernel.dense import attend
from outrider.torch.nn.layer.correlation import Correlation
from outrider.torch.nn.linear import Linear
from outrider.torch.nn.position import Columns, Positions, Rotary
from outrider.torch.nn.position.bucketed import BucketedBias
from outrider.torch.nn.position.distance import DistanceTable
from outrider.torch.nn.score import ScoreBase, build_score


class Source(NamedTuple):
    """Keys, values and mask of one layer's cross-attention."""

    k_BHSK: Tensor
    v_BHSK: Tensor
    keep_BS: Tensor | None
    index_BT: Tensor | None = None
    """Positions of the target tokens; None if they count from 0."""


class SelfAttention(nn.Module):
    """Attention among the tokens of one sequence under a pattern."""

    def __init__(
        self,
        width: int,
        heads: int,
        attention: AttentionBase,
        *,
        kv_heads: int | None = None,
        rotary: Rotary | None = None,
        columns: Columns | None = None,
        correlation: int = 0,
        head_width: int | None = None,
        bias: BucketedBias | None = None,
        distances: DistanceTable | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_width = head_width or width // heads
        self._bias = [] if bias is None else [bias]  # in a list: its weights belong to the stack
        self.distances = distances
        self.attention = attention
        self.rotary = rotary
        self.columns = columns
        self.qkv = Linear(width, (heads + 2 * self.kv_heads) * self.head_width)
        self.out = Linear(heads * self.head_width, width)
        gated = attention.config.head_gate == "glu"
        self.gate = Linear(width, heads * self.head_width) if gated else None
        # Attention divides by the root of the width; `dot` cancels this.
        self.query_scale = self.head_width**0.5 if attention.config.score == "dot" else 1.0
        self.correlation: Correlation | None = None
        if correlation:
            channels = (heads + self.kv_heads) * self.head_width
            self.correlation = Correlation(correlation, channels, ahead=looks_ahead(attention))

    def forward(self, x_BTD: Tensor, positions: Positions, keep_BT: Tensor | None = None) -> Tensor:
        """Run a whole pass from position 0."""
        q, k, v = self.project(x_BTD, positions, keep_BT)
        if self.bias is not None:
            return self.merge(self._attend_biased(q, k, v, keep_BT), x_BTD)
        return self.merge(self.attention(q, k, v, keep_BT=keep_BT), x_BTD)

    def extend(self, x_BTD: Tensor, cache: Cache, step: Step) -> Tensor:
        """Append tokens to the cache and attend from them."""
        recall = None
        if isinstance(cache, RingedCache):
            (ring,), cache = cache.rings, cache.inner
            recall = lambda qk: ring.extend(qk, step)  # noqa: E731
        q, k, v = self.project(x_BTD, step.positions, recall=recall)
        if self.bias is not None:
            return self.merge(self._extend_biased(q, k, v, cache, step), x_BTD)
        return self.merge(self.attention.extend(q, k, v, cache, step), x_BTD)

    @property
    def bias(self) -> BucketedBias | DistanceTable | None:
        """Bias added to the scores of every pair."""
        return self._bias[0] if self._bias else self.distances

    def _attend_biased(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None
    ) -> Tensor:
        """Run a whole pass with a bias; configs allow it with full and causal attention only."""
        causal = self.attention.causal
        # If causal, right padding is behind every real query.
        keep = None if causal or keep_BT is None else keep_BT[:, None, None]
        assert self.bias is not None
        bias = self.bias.whole(q_BHTK)
        dropout = self.attention.active_dropout
        return attend(q_BHTK, k_BGTK, v_BGTK, keep=keep, causal=causal, dropout=dropout, bias=bias)

    def _extend_biased(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, cache: Cache, step: Step
    ) -> Tensor:
        assert isinstance(cache, LayerCache)
        assert self.bias is not None
        if step.fresh:
            cache.fill(k_BGTK, v_BGTK, step)
            return self._attend_biased(q_BHTK, k_BGTK, v_BGTK, None)
        slots = step.slots(self.attention, cache.size)
        k_BGCK, v_BGCK = cache.write(k_BGTK, v_BGTK, slots)
        bias = self.bias.after(q_BHTK, step.positions, slots.read)
        return attend(q_BHTK, k_BGCK, v_BGCK, keep=slots.keep, bias=bias)

    def new_cache(self, rows: int, capacity: int, slack: int = SLACK) -> Cache:
        """Return a cache for `capacity` tokens per row."""
        weight = self.qkv.weight
        width = self.head_width + (self.columns.extra if self.columns is not None else 0)
        spec = CacheSpec(rows, capacity, self.kv_heads, width, weight.dtype, weight.device, slack)
        cache = self.attention.new_cache(spec)
        if self.correlation is None:
            return cache
        return RingedCache(cache, [self.correlation.new_ring(rows, capacity, slack)])

    def project(
        self,
        x_BTD: Tensor,
        positions: Positions,
        keep_BT: Tensor | None = None,
        recall: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values with position information.

        `recall` prepends the vectors before the tokens of a step.
        """
        qkv_BTE = self.qkv(x_BTD)
        if self.correlation is not None:
            qkv_BTE = self._correlate(self.correlation, qkv_BTE, keep_BT, recall)
        qkv = qkv_BTE.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.query_scale != 1:
            q = q * self.query_scale
        if self.rotary is not None:
            q, k = self.rotary(q, positions), self.rotary(k, positions)
        if self.columns is None:
            return q, k, v
        a, b = self.columns(q, k, positions)
        content = self.columns.content(q) * (self.columns.root / self.head_width**0.5)
        q = torch.cat([content, a], dim=-1)
        return q, torch.cat([k, b], dim=-1), F.pad(v, (0, self.columns.extra))

    def _correlate(
        self,
        correlation: Correlation,
        qkv_BTE: Tensor,
        keep_BT: Tensor | None,
        recall: Callable[[Tensor], Tensor] | None,
    ) -> Tensor:
        channels = correlation.filter_WE.shape[1]
        qk_BTE, v_BTE = qkv_BTE[..., :channels], qkv_BTE[..., channels:]
        if keep_BT is not None:
            qk_BTE = qk_BTE.masked_fill(~keep_BT[..., None], 0)  # padding is masked
        padded_BSE = correlation.pad(qk_BTE) if recall is None else recall(qk_BTE)
        return torch.cat([correlation(padded_BSE), v_BTE], dim=-1)

    def merge(self, out_BHTK: Tensor, x_BTD: Tensor | None = None) -> Tensor:
        """Merge the heads; a gate is computed from the layer's input `x_BTD`."""
        out_BTD = out_BHTK[..., : self.head_width].transpose(1, 2).flatten(2)
        if self.gate is not None:
            assert x_BTD is not None, "a gate needs the layer's input"
            out_BTD = out_BTD * self.gate(x_BTD).sigmoid()
        return self.out(out_BTD)


class CrossAttention(nn.Module):
    """Attention from target tokens to the source."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        dropout: float = 0.0,
        head_width: int | None = None,
        config: AttentionConfig | None = None,
    ) -> None:
        super().__init__()
        config = config or AttentionConfig()
        self.heads, self.head_width = heads, head_width or width // heads
        self.dropout = dropout
        inner = heads * self.head_width
        self.q = Linear(width, inner)
        self.kv = Linear(width, 2 * inner)
        self.out = Linear(inner, width)
        self.gate = Linear(width, inner) if config.head_gate == "glu" else None
        self.query_scale = self.head_width**0.5 if config.score == "dot" else 1.0
        self.normaliser = config.normaliser
        self.score: ScoreBase | None = None
        """None for scaled dot (or dot) and softmax, which PyTorch's kernels compute."""
        if config.score not in ("scaled_dot", "dot") or config.normaliser != "softmax":
            self.score = build_score(
                config.score,
                heads=heads,
                kv_heads=heads,
                width=self.head_width,
                positions=config.score_positions,
            )

    def source(self, memory_BSD: Tensor, keep_BS: Tensor | None) -> Source:
        """Project the encoder's output once for all steps."""
        kv = self.kv(memory_BSD).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        k, v = kv.chunk(2, dim=1)
        if self.score is not None:
            k = self.score.keys(k)
        if not torch.is_grad_enabled():
            k, v = k.contiguous(), v.contiguous()  # read at every step
        return Source(k, v, keep_BS)

    def forward(self, x_BTD: Tensor, source: Source) -> Tensor:
        """Attend to the source; there may be several rows (beams) per source."""
        rows, tokens, _ = x_BTD.shape
        beams = rows // source.k_BHSK.shape[0]
        q = self.q(x_BTD).view(-1, beams * tokens, self.heads, self.head_width).transpose(1, 2)
        if self.score is not None and source.index_BT is not None:
            index_BT = source.index_BT.expand(rows, -1)
            source = source._replace(index_BT=index_BT.reshape(-1, beams * tokens))
        out_BTD = self.attend(q, source).transpose(1, 2).reshape(rows, tokens, -1)
        if self.gate is not None:
            out_BTD = out_BTD * self.gate(x_BTD).sigmoid()
        return self.out(out_BTD)

    @torch.no_grad()
    def weights(self, x_BTD: Tensor, source: Source) -> Tensor:
        """Return the weights of every target token and head over the source, [B, H, T, S].

        Attention is linear in its values, so unit vectors as values give the weights.
        """
        q_BHTK = self.q(x_BTD).unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)
        k_BHSK = source.k_BHSK
        unit_SS = torch.eye(k_BHSK.shape[2], dtype=k_BHSK.dtype, device=k_BHSK.device)
        values = unit_SS.expand(*k_BHSK.shape[:2], -1, -1)
        return self.attend(q_BHTK, source._replace(v_BHSK=values))

    def attend(self, q_BHTK: Tensor, source: Source) -> Tensor:
        """Return the outputs of all heads."""
        keep = None if source.keep_BS is None else source.keep_BS[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        if self.query_scale != 1:
            q_BHTK = q_BHTK * self.query_scale
        if self.score is None:
            return attend(q_BHTK, source.k_BHSK, source.v_BHSK, keep=keep, dropout=dropout)
        batch, _, length, _ = source.k_BHSK.shape
        if keep is None:
            keep = torch.ones(1, 1, 1, length, dtype=torch.bool, device=q_BHTK.device)
        at = None
        if source.index_BT is not None:
            at = source.index_BT, torch.arange(length, device=q_BHTK.device).expand(batch, -1)

        def visible(first: int, last: int) -> tuple[int, Tensor]:
            return 0, keep.expand(-1, -1, last - first, -1)

        scoring = Scoring(self.score, self.normaliser, visible, at=at, dropout=dropout)
        return blockwise(scoring, self.score.queries(q_BHTK), source.k_BHSK, source.v_BHSK)


def looks_ahead(attention: AttentionBase) -> bool:
    """Whether some query sees a later key; patterns of encoders may be causal."""
    if attention.causal or not attention.positional:
        return not attention.causal
    place = torch.arange(64, device="cpu")
    i, j = place[:, None], place[None]
    return bool((attention.heads_see(i, j) & (j > i)).any())
