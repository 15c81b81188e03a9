"""The contract of an attention variant.

    y_i = sum_{j in S_i} w_ij v_j        w_i = softmax_{j in S_i}(q_i . k_j / sqrt(K))

A variant is a pattern S_i. It writes the pattern once, as the predicate `sees(i, j)`; from that
this base derives a reference and the masks of cached decoding. A variant adds what the predicate
cannot give: a `run` that does not cost T x T, what decoding must remember, and its cost.
Projections, gates and positions are not its business.

Other scores than q . k / sqrt(K), and other normalisers than softmax, are options of every variant
(`nn/kernel/scored.py`). They are computed from the same predicate, tile by tile, not by its `run`.
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

__all__ = ["AttentionBase", "AttentionConfig", "Cost", "HeadShape"]

GATES = ("none", "glu")
REMEMBERED = 1 << 11
"""Longest text whose dense mask is kept for the next: 4 MB."""
TABLE_LIMIT = 1 << 13
"""Largest table of `score: fast`; it holds the square of this per head."""


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Options that every variant has. Frozen, hashable, plain values."""

    head_gate: str = "none"
    """`glu` multiplies what a head gives by a gate that looks at the layer's input."""
    score: str = "scaled_dot"
    """How a key answers a query: scaled_dot, dot, additive, slow or fast."""
    normaliser: str = "softmax"
    """How scores become weights: softmax or tanh_exp."""
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
        """Return the options to measure and draw a text of `length` tokens with.

        The defaults, unless the best value depends on the length or there is no default.
        """
        return {}

    @classmethod
    def for_layer(cls, options: dict[str, Any], layer: int) -> dict[str, Any]:
        """Return the options of one of the layers that `options` are given for."""
        return options

    @classmethod
    def check_shared(cls, options: dict[str, Any], key: str) -> None:
        """Raise `ConfigError` where layers with these options differ, so that they cannot be one.

        `key` is where the config names the attention.
        """


class HeadShape(NamedTuple):
    """The heads an attention is built for; a variant with parameters of its own asks."""

    heads: int
    kv_heads: int
    width: int
    """Of one head; queries and keys may come with further columns of a bias behind (`Columns`)."""


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
    positional: ClassVar[bool] = True
    """The pattern depends on positions alone, so `sees` tells it; otherwise on what is said too,
    and the variant writes a `reference` of its own."""
    scores_ok: ClassVar[bool] = True
    """Other scores and normalisers may be asked for; not where a variant decodes its own way."""
    by_pairs: ClassVar[bool] = True
    """Queries meet keys one by one, by the kernels of `nn`; otherwise `cost` counts what takes as
    long, and the variant writes a `reference` of its own."""
    columns_ok: ClassVar[bool] = True
    """Scores by q . k of all columns it is given, so that positions can bias them (`Columns`)."""
    halting_ok: ClassVar[bool] = False
    """Some queries of a text may ask alone, as tokens that have halted ask no more
    (`nn/stack/halting.py`): `sees` says for each which keys it sees, whoever else asks, and the
    cache is a `LayerCache`."""
    skipping_ok: ClassVar[bool] = False
    """Tokens may be left out of a layer (`nn/stack/skip.py`): the pattern does not ask how far
    apart the others stand."""

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
        """None where the variant's own way computes it: scaled dot (or dot) and softmax."""

    @property
    def kind(self) -> str:
        """The name of its file, by which a config asks for it."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def key(self) -> object:
        """Equal for two attentions with the same pattern."""
        return type(self), self.config, self.causal

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether j is in S_i, for integer positions that broadcast together."""
        raise NotImplementedError

    def heads_see(self, i: Tensor, j: Tensor) -> Tensor:
        """The same for every head, [H, ...], or [1, ...] where all heads see alike."""
        return self.sees(i, j)[None]

    @property
    def heads_alike(self) -> bool:
        """Whether `sees` holds for every head."""
        return type(self).heads_see is AttentionBase.heads_see

    def reach(self, first: int, last: int, length: int) -> tuple[int, int]:
        """Bound the keys that queries first to last - 1 may see: from, and up to but without.

        A bound, not the pattern: it saves asking `heads_see` about what is out of reach anyway.
        """
        if not self.causal:
            return 0, length
        # A variant that decodes from a ring of C slots sees nothing that is C tokens back.
        return max(0, first - self.slots(length) + 1), last

    def slots(self, capacity: int) -> int:
        """Slots needed to decode `capacity` tokens: as many, unless the pattern forgets."""
        return capacity

    def cost(self, length: int) -> Cost:
        """Return what a sequence of `length` tokens costs."""
        raise NotImplementedError

    def new_cache(self, spec: CacheSpec) -> Cache:
        """Return an empty cache; a variant that does not remember in one line makes its own."""
        return LayerCache(spec, spec.widen(self.slots(spec.capacity)))

    def penalty(self) -> Tensor | None:
        """Return what training should add to the loss, once per update."""
        return None

    def check_reversible(self, key: str) -> None:
        """Raise `ConfigError` where reversible layers, which compute a pass again, cannot have it.

        `key` is where the config names it.
        """

    def forward(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, *, keep_BT: Tensor | None = None
    ) -> Tensor:
        """One whole pass from position 0. `keep_BT` marks real tokens (right-padded rows)."""
        if self.scored is not None:
            return self.scored(self, q_BHTK, k_BGTK, v_BGTK, keep_BT, self.active_dropout)
        if q_BHTK.is_cuda and self._flexible:
            keep = None if self.causal else keep_BT  # right padding lies ahead of every real query
            out = flex.attend(self, q_BHTK, k_BGTK, v_BGTK, keep)
            if out is not None:
                return out
        return self.run(q_BHTK, k_BGTK, v_BGTK, keep_BT)

    def run(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Compute `forward` by whatever way is fastest for these shapes."""
        return self.reference(q_BHTK, k_BGTK, v_BGTK, keep_BT=keep_BT)

    def reference(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, *, keep_BT: Tensor | None = None
    ) -> Tensor:
        """The pattern as a dense T x T mask: right for every variant, quadratic."""
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
        """Return the pattern of so many tokens, [H or 1, T, T].

        The last small one is remembered: to work a pattern out took as long as to attend.
        """
        known = self._last_mask
        if known is not None and known.shape[-1] == length and known.device == device:
            return known
        with torch.inference_mode(False):  # made while decoding, it must still serve a backward
            position_T = torch.arange(length, device=device)
            mask_HTT = self.heads_see(position_T[:, None], position_T[None, :])
        if self.heads_alike and length <= REMEMBERED and not torch.compiler.is_compiling():
            self._last_mask = mask_HTT
        return mask_HTT

    @property
    def _flexible(self) -> bool:
        """Whether `sees` says all there is to say, so that FlexAttention can compute it.

        Inside `torch.compile` the variant's own way is compiled instead.
        """
        own = type(self).reference is AttentionBase.reference
        compiling = torch.compiler.is_compiling()
        said = self.positional and own and self.heads_alike
        return said and not self.active_dropout and not compiling

    @property
    def active_dropout(self) -> float:
        """Dropout on attention weights: nothing outside training."""
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
