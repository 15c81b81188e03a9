"""An attention pattern at some length: the pairs a query sees, and the pairs computed for it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.config import show_value
from outrider.errors import ConfigError
from outrider.torch.inspect.attention_trace import (
    computed_pairs,
    marked_heads,
    runs_dense,
    self_weights,
)
from outrider.torch.nn.attention import AttentionBase, HeadShape, build_attention, load_attention

SHAPE = HeadShape(heads=4, kv_heads=4, width=16)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
"""Default lengths: the first at which the pattern is visible."""
SPARSE = 0.3
"""A pattern is visible if a query sees at most this share of all tokens."""


@dataclass(frozen=True)
class HeadPattern:
    """A pattern, and the heads that have it."""

    heads: tuple[int, ...]
    """Counted from 1."""
    seen_TT: NDArray[np.bool_]
    computed_TT: NDArray[np.bool_] | None
    """None if the fast path cannot be traced."""

    @property
    def seen(self) -> float:
        """Share of all pairs that are seen."""
        return float(self.seen_TT.mean())

    @property
    def computed(self) -> float | None:
        """Share of all pairs that are computed."""
        return None if self.computed_TT is None else float(self.computed_TT.mean())


@dataclass(frozen=True)
class Pattern:
    """The result of `outrider show pattern`."""

    kind: str
    options: dict[str, Any]
    causal: bool
    length: int
    example: bool
    """Whether the pattern depends on the tokens; this is then a random example."""
    dense: bool
    """Whether all pairs are computed in one pass, although the pattern is sparse."""
    heads: tuple[HeadPattern, ...]

    @property
    def settings(self) -> str:
        """The options as on the command line."""
        return "  ".join(f"{name}={show_value(value)}" for name, value in self.options.items())

    @property
    def place(self) -> str:
        """Encoder or decoder, and the length."""
        place = "in a decoder" if self.causal else "in an encoder"
        example = ", a random example" if self.example else ""
        return f"{place}, {self.length:,} tokens{example}"

    @property
    def reason(self) -> str:
        """Why more pairs are computed than seen, or ""."""
        if not self.dense:
            return ""
        return (
            "one dense pass is faster here; a longer text or smaller options show the sparse path"
        )


def find_pattern(
    kind: str,
    options: Mapping[str, Any] | None = None,
    *,
    causal: bool | None = None,
    length: int | None = None,
) -> Pattern:
    """Build an attention of four heads and return its pattern.

    Args:
        kind: Name of the attention.
        options: Its options.
        causal: Whether it is in a decoder; by default if it supports that.
        length: Tokens; by default enough to make the pattern visible.
    """
    options = dict(options or {})
    if causal is None:
        causal = load_attention(kind, key="kind").Attention.causal_ok
    torch.manual_seed(0)
    attention = build_attention({"kind": kind, **options}, causal=causal, shape=SHAPE, key=kind)
    attention = attention.double().eval()
    if length is None:
        length = _default_length(attention)
    elif not 1 <= length <= LENGTHS[-1]:
        raise ConfigError("--length", f"got {length}, expected 1 to {LENGTHS[-1]}")
    seen_HTT = _seen(attention, length)
    computed_HTT = computed_pairs(attention, length)
    heads = tuple(_group_heads(seen_HTT, computed_HTT))
    if not attention.positional:
        heads = heads[:1]  # heads differ by chance only
    pairs = length * (length + 1) // 2 if causal else length**2
    sparse = int(seen_HTT.sum()) < len(seen_HTT) * pairs
    return Pattern(
        kind,
        options,
        causal,
        length,
        example=not attention.positional,
        dense=sparse and runs_dense(attention, length),
        heads=heads,
    )


def _default_length(attention: AttentionBase) -> int:
    for length in LENGTHS:
        sparse = attention.cost(length).pairs <= SPARSE * length**2
        if sparse and not runs_dense(attention, length):
            return length
    return LENGTHS[0]


@torch.no_grad()
def _seen(attention: AttentionBase, length: int) -> Tensor:
    if attention.positional:
        at_T = torch.arange(length)
        seen_HTT = attention.heads_see(at_T[:, None], at_T[None])
        return seen_HTT.expand(attention.shape.heads, -1, -1)
    q, k, _ = marked_heads(attention, length)
    return self_weights(attention, q, k)[0] != 0


def _group_heads(seen_HTT: Tensor, computed_HTT: Tensor | None) -> Iterator[HeadPattern]:
    """Group the heads that share a pattern."""
    groups: list[list[int]] = []
    both = [seen_HTT] if computed_HTT is None else [seen_HTT, computed_HTT]
    for head in range(len(seen_HTT)):
        for group in groups:
            if all(torch.equal(x[head], x[group[0]]) for x in both):
                group.append(head)
                break
        else:
            groups.append([head])
    for group in groups:
        computed_TT = None if computed_HTT is None else computed_HTT[group[0]].numpy()
        yield HeadPattern(
            tuple(head + 1 for head in group), seen_HTT[group[0]].numpy(), computed_TT
        )
