"""The description of a masked language model."""

from dataclasses import dataclass
from typing import Any, ClassVar

from outrider.errors import ConfigError
from outrider.formats.description.base import ModelDescription
from outrider.formats.description.checks import check_model

__all__ = ["MaskedLmDescription"]


@dataclass(kw_only=True)
class MaskedLmDescription(ModelDescription):
    """An encoder alone, which names the tokens that are hidden from it."""

    model_type: ClassVar[str] = "outrider_masked_lm"
    layer_keys: ClassVar[tuple[str, ...]] = ("layers",)
    attention_keys: ClassVar[dict[str, tuple[str, bool]]] = {"attention": ("layers", False)}

    layers: int = 6
    attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all layers, or a list with one per layer."""
    bos_token_id: int = 3
    mask_token_id: int = 4
    """Stands where a token is hidden."""

    def __post_init__(self) -> None:
        self.fill_attention("attention", "full")
        specs = self.attention if isinstance(self.attention, list) else [self.attention or {}]
        if any(spec.get("kind") == "causal" for spec in specs):
            message = "'causal' looks back only, and a masked_lm reads from both sides; use full"
            raise ConfigError("attention.kind", message)
        check_model(self)
        if not 0 <= self.mask_token_id < self.vocab_size:
            message = f"got {self.mask_token_id}, but the vocabulary has {self.vocab_size} tokens"
            raise ConfigError("mask_token_id", message)
