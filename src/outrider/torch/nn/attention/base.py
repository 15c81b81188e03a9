"""The contract of an attention variant.

    y_i = sum_{j in S_i} w_ij v_j        w_i = softmax_{j in S_i}(q_i . k_j / sqrt(K))

A variant defines the pattern S_i as the predicate `sees(i, j)`. This base class derives a reference
implementation and the masks of cached decoding from it. A variant adds a `run` that costs less
than T x T, its cache, and its cost. Projections, gates and positions are handled elsewhere.

Other scores than q . k / sqrt(K) and other normalisers than softmax are options of every variant
(`nn/kernel/scored.py`). They are computed from the same predicate, tile by tile, not by `run`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from outrider.errors import ConfigError, nearest
from outrider.torch.nn.cache import Cache, CacheSpec, LayerCache, Step
from outrider.torch.nn.kernel import flex
from outrider.torch.nn.kernel.blockwise import NORMALISERS
from outrider.torch.nn.kernel.dense import attend
from outrider.torch.nn.kernel.scored import Scored
from outrider.torch.nn.score import build_score, score_names

GATES = ("none", "glu")
CACHED_UP_TO = 1 << 11
"""Longest sequence whose dense mask is cached: 4 MB."""
TABLE_LIMIT = 1 << 13
"""Largest table of `score: fast`, which holds the square of this per head."""


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Options of every variant."""

    head_gate: str = "none"
    """`glu` multiplies the output of a head by a gate computed from the layer's input."""
    score: str = "scaled_dot"
    """Score of a query and a key: scaled_dot, dot, additive, slow or fast."""
    normaliser: str = "softmax"
    """Map from scores to weights: softmax or tanh_exp."""
    score_positions: int | None = None
    """Positions in the table of `score: fast`; null for 512."""

    def __post_init__(self) -> None:
        choices = {"head_gate": GATES, "score": score_names(), "normaliser": NORMALISERS}
        for option, accepted in choices.items():
            value = getattr(self, option)
            if value not in accepted:
                hint = nearest(str(value), accepted)
                message = f"unknown {value!r}{hint}; expected one of {list(accepted)}"
                raise ConfigError(f"attention.{option}", message)
        size = self.score_positions
        if size is None:
            return
        if self.score != "fast":
            raise ConfigError(
                "attention.score_positions", f"score {self.score!r} has no table; leave it out"
            )
        if type(size) is not int or not 1 <= size <= TABLE_LIMIT:
            raise ConfigError(
                "attention.score_positions", f"got {size!r}, expected 1 to {TABLE_LIMIT}"
            )

    @classmethod
    def options_for(cls, length: int) -> dict[str, Any]:
        """Return options for benchmarks and figures with `length` tokens.

        Empty unless the best value depends on the length or an option has no default.
        """
        return {}

    @classmethod
    def for_layer(cls, options: dict[str, Any], layer: int) -> dict[str, Any]:
        """Return the options of one layer."""
        return options

    @classmethod
    def check_shared(cls, options: dict[str, Any], key: str) -> None:
        """Raise `ConfigError` if these options make layers differ, so that they cannot be shared.

        `key` is the config key of the attention.
        """


class HeadShape(NamedTuple):
    """The heads of an attention."""

    heads: int
    kv_heads: int
    width: int
    """Width of one head; queries and keys may have further columns for a bias (`Columns`)."""


class Cost(NamedTuple):
    """Cost of a variant for a sequence of given length."""

    pairs: int
    """Query-key pairs that one head scores in a whole pass."""
    slots: int
    """Tokens whose keys and values are cached."""


class AttentionBase(nn.Module):
    """Maps queries, keys and values to outputs under one pattern."""

    causal_ok: ClassVar[bool] = True
    """Works in a decoder, where j <= i."""
    two_sided_ok: ClassVar[bool] = True
    """Works in an encoder, where a query sees both sides."""
    positional: ClassVar[bool] = True
    """The pattern depends on positions alone, so `sees` defines it. Otherwise it also depends on
    the content, and the variant defines its own `reference`."""
    scores_ok: ClassVar[bool] = True
    """Supports other scores and normalisers; not if the variant decodes in its own way."""
    by_pairs: ClassVar[bool] = True
    """Scores query-key pairs with the kernels of `nn`. Otherwise `cost` counts pairs that take as
    long, and the variant defines its own `reference`."""
    columns_ok: ClassVar[bool] = True
    """Scores by q . k over all columns, so that positions can bias the scores (`Columns`)."""
    halting_ok: ClassVar[bool] = False
    """Supports a subset of queries, as when tokens have halted (`nn/family/halting.py`): `sees`
    does not depend on the other queries, and the cache is a `LayerCache`."""
    skipping_ok: ClassVar[bool] = False
    """Tokens can be left out of a layer (`nn/family/skip.py`): the pattern does not depend on
    distances."""

    def __init__(
        self,
        config: AttentionConfig,
        *,
        causal: bool,
        dropout: float = 0.0,
        shape: HeadShape,
    ) -> None:
        super().__init__()
        self.config = config
        self.causal = causal
        self.dropout = dropout
        self.shape = shape
        self._last_mask: Tensor | None = None
        self.scored = self._build_scored()
        """None for scaled dot (or dot) and softmax, which the variant computes itself."""

    @property
    def kind(self) -> str:
        """Name of the variant in a config, which is its file name."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def key(self) -> object:
        """Equal for two attentions with the same pattern."""
        return type(self), self.config, self.causal

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether j is in S_i; positions are integers and broadcast."""
        raise NotImplementedError

    def heads_see(self, i: Tensor, j: Tensor) -> Tensor:
        """Return `sees` of every head, [H, ...], or [1, ...] if all heads have the same pattern."""
        return self.sees(i, j)[None]

    @property
    def heads_alike(self) -> bool:
        """Whether all heads have the same pattern."""
        return type(self).heads_see is AttentionBase.heads_see

    def reach(self, first: int, last: int, length: int) -> tuple[int, int]:
        """Return bounds (start, end) of the keys that queries first to last - 1 may see.

        They limit the range in which `heads_see` is evaluated.
        """
        if not self.causal:
            return 0, length
        # A ring of C slots holds every visible key, so none is C or more tokens back.
        return max(0, first - self.slots(length) + 1), last

    def slots(self, capacity: int) -> int:
        """Return the cache slots needed to decode `capacity` tokens."""
        return capacity

    def cost(self, length: int) -> Cost:
        """Return the cost of a sequence of `length` tokens."""
        raise NotImplementedError

    def new_cache(self, spec: CacheSpec) -> Cache:
        """Return an empty cache."""
        return LayerCache(spec, spec.widen(self.slots(spec.capacity)))

    def penalty(self) -> Tensor | None:
        """Return the term to add to the training loss once per update, if any."""
        return None

    def check_reversible(self, key: str) -> None:
        """Raise `ConfigError` if reversible layers, which recompute a pass, do not support this.

        `key` is the config key of the attention.
        """

    def forward(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, *, keep_BT: Tensor | None = None
    ) -> Tensor:
        """Attend in a whole pass from position 0; `keep_BT` marks real tokens (right padding)."""
        if self.scored is not None:
            return self.scored(self, q_BHTK, k_BGTK, v_BGTK, keep_BT, self.active_dropout)
        if q_BHTK.is_cuda and self._flexible:
            keep = None if self.causal else keep_BT  # right padding is behind every real query
            out = flex.attend(self, q_BHTK, k_BGTK, v_BGTK, keep)
            if out is not None:
                return out
        return self.run(q_BHTK, k_BGTK, v_BGTK, keep_BT)

    def run(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Compute `forward` in the fastest way for these shapes."""
        return self.reference(q_BHTK, k_BGTK, v_BGTK, keep_BT=keep_BT)

    def reference(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, *, keep_BT: Tensor | None = None
    ) -> Tensor:
        """Attend under a dense T x T mask; correct for every variant, quadratic."""
        if self.scored is not None:
            return self.scored.reference(self, q_BHTK, k_BGTK, v_BGTK, keep_BT)
        keep = self._mask(q_BHTK.shape[2], q_BHTK.device)[None]
        if keep_BT is not None:
            keep = keep & keep_BT[:, None, None, :]
        return attend(q_BHTK, k_BGTK, v_BGTK, keep=keep, dropout=self.active_dropout)

    def extend(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, cache: Cache, step: Step
    ) -> Tensor:
        """Append tokens to every row of the cache and attend from them."""
        assert isinstance(cache, LayerCache)
        if self.scored is not None:
            return self.scored.extend(self, q_BHTK, k_BGTK, v_BGTK, cache, step)
        if step.fresh:
            cache.fill(k_BGTK, v_BGTK, step)
            return self(q_BHTK, k_BGTK, v_BGTK)
        slots = step.slots(self, cache.size)
        k_BGCK, v_BGCK = cache.write(k_BGTK, v_BGTK, slots)
        return attend(q_BHTK, k_BGCK, v_BGCK, keep=slots.keep)

    def _mask(self, length: int, device: torch.device) -> Tensor:
        """Return the pattern of `length` tokens, [H or 1, T, T].

        The last small mask is cached: computing a mask takes as long as attending.
        """
        cached = self._last_mask
        if cached is not None and cached.shape[-1] == length and cached.device == device:
            return cached
        with torch.inference_mode(False):  # a later backward may use it
            position_T = torch.arange(length, device=device)
            mask_HTT = self.heads_see(position_T[:, None], position_T[None, :])
        if self.heads_alike and length <= CACHED_UP_TO and not torch.compiler.is_compiling():
            self._last_mask = mask_HTT
        return mask_HTT

    @property
    def _flexible(self) -> bool:
        """Whether `sees` defines the attention completely, so that FlexAttention can compute it.

        Inside `torch.compile` the variant's own way is compiled instead.
        """
        if torch.compiler.is_compiling() or self.active_dropout:
            return False
        own_reference = type(self).reference is not AttentionBase.reference
        return self.positional and self.heads_alike and not own_reference

    @property
    def active_dropout(self) -> float:
        """Dropout on attention weights; 0 outside training."""
        return self.dropout if self.training else 0.0

    def _build_scored(self) -> Scored | None:
        score, normaliser = self.config.score, self.config.normaliser
        usual_score = score in ("scaled_dot", "dot")
        if usual_score and normaliser == "softmax":
            return None
        own_way = type(self).extend is not AttentionBase.extend
        own_way |= type(self).new_cache is not AttentionBase.new_cache
        if own_way or not self.scores_ok or not self.positional:
            option, value = ("normaliser", "softmax") if usual_score else ("score", "scaled_dot")
            message = (
                f"{self.kind!r} can only do {value!r}; leave {option} out or choose another kind"
            )
            raise ConfigError(f"attention.{option}", message)
        heads, kv_heads, width = self.shape
        size = self.config.score_positions
        built = build_score(score, heads=heads, kv_heads=kv_heads, width=width, positions=size)
        return Scored(built, normaliser)
