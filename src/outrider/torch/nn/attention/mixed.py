"""Mixed heads: groups of heads of one layer with different attentions.

    {kind: mixed, parts: [{heads: 2, kind: sliding, window: 64}, {heads: 2, kind: causal}]}

Each part computes its heads independently, with its own cache. One part may omit `heads` and takes
the rest. Cost and cache are the means over the heads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.nn.attention import build_attention
from outrider.torch.nn.attention.base import AttentionBase, AttentionConfig, Cost, HeadShape
from outrider.torch.nn.attention.head_parts import HeadParts
from outrider.torch.nn.cache import Cache, CacheSpec, Step

PART = "attention.parts[{}]"


@dataclass(frozen=True, kw_only=True)
class Config(AttentionConfig):
    """Options of `kind: mixed`."""

    parts: Sequence[Any] = ()
    """`{heads: ..., kind: ..., option: ...}` for each group of heads."""

    @classmethod
    def options_for(cls, length: int) -> dict[str, Any]:
        """Return two heads of two kinds."""
        return {"parts": [{"heads": 2, "kind": "sliding"}, {"heads": 2, "kind": "causal"}]}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.parts, list | tuple) or not self.parts:
            raise ConfigError(
                "attention.parts", "expected a list such as [{heads: 2, kind: causal}, ...]"
            )
        parts = tuple(_part(index, part) for index, part in enumerate(self.parts))
        if sum("heads" not in dict(part) for part in parts) > 1:
            raise ConfigError("attention.parts", "only one part may omit `heads`")
        object.__setattr__(self, "parts", parts)


def _part(index: int, part: Any) -> tuple[tuple[str, Any], ...]:
    """Check one part and make it hashable."""
    key = PART.format(index)
    options = dict(part) if isinstance(part, Mapping | tuple) else {}
    if "kind" not in options:
        raise ConfigError(f"{key}.kind", "is missing; expected the kind of these heads")
    if options["kind"] == "mixed":
        raise ConfigError(f"{key}.kind", "'mixed' cannot hold 'mixed'; list its parts here")
    heads = options.get("heads", 1)
    if type(heads) is not int or heads < 1:
        raise ConfigError(f"{key}.heads", f"got {heads!r}, expected 1 or more")
    if "head_gate" in options:
        raise ConfigError(f"{key}.head_gate", "belongs to the whole layer; set it beside parts")
    return tuple(sorted((name, _frozen(value)) for name, value in options.items()))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


class Attention(AttentionBase):
    """One attention per group of heads."""

    config: Config
    scores_ok = False

    def __init__(
        self, config: Config, *, causal: bool, dropout: float = 0.0, shape: HeadShape
    ) -> None:
        super().__init__(config, causal=causal, dropout=dropout, shape=shape)
        counts = [dict(part).get("heads", 0) for part in config.parts]
        rest = shape.heads - sum(counts)
        if rest < 0 or (rest > 0) != (0 in counts):
            raise ConfigError(
                "attention.parts",
                f"have {sum(counts)} heads in total, the layer has {shape.heads}; make them equal",
            )
        heads = [count or rest for count in counts]
        self.parts = HeadParts([self._build(*part) for part in enumerate(heads)])
        self.positional = all(part.positional for part in self.parts.parts)  # type: ignore[misc]

    def _build(self, index: int, heads: int) -> AttentionBase:
        key = PART.format(index)
        options = dict(self.config.parts[index])
        options.pop("heads", None)
        shared = self.shape.heads // self.shape.kv_heads
        if heads % shared:
            raise ConfigError(
                f"{key}.heads",
                f"got {heads}; use a multiple of {shared}, the heads that share keys",
            )
        shape = HeadShape(heads, heads // shared, self.shape.width)
        return build_attention(
            options, causal=self.causal, dropout=self.dropout, shape=shape, key=key
        )

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether any head sees j."""
        return self.heads_see(i, j).any(dim=0)

    def heads_see(self, i: Tensor, j: Tensor) -> Tensor:
        """Return the pattern of every head."""
        return self.parts.heads_see(i, j)

    def slots(self, capacity: int) -> int:
        """Return the mean over key-value heads."""
        return self.parts.slots(capacity)

    def cost(self, length: int) -> Cost:
        """Return the mean over heads."""
        return self.parts.cost(length)

    def penalty(self) -> Tensor | None:
        """Return the sum of the penalties of the parts."""
        return self.parts.penalty()

    def run(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Attend with every part in its own way."""
        return self.parts.each(
            q_BHTK, k_BGTK, v_BGTK, lambda part, q, k, v: part(q, k, v, keep_BT=keep_BT)
        )

    def reference(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, *, keep_BT: Tensor | None = None
    ) -> Tensor:
        """Attend with every part's reference."""
        return self.parts.each(
            q_BHTK, k_BGTK, v_BGTK, lambda part, q, k, v: part.reference(q, k, v, keep_BT=keep_BT)
        )

    def new_cache(self, spec: CacheSpec) -> Cache:
        """Return a cache for every part."""
        return self.parts.new_cache(spec)

    def extend(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, cache: Cache, step: Step
    ) -> Tensor:
        """Append tokens to the cache of every part and attend from them."""
        return self.parts.extend(q_BHTK, k_BGTK, v_BGTK, cache, step)
