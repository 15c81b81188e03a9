"""The description of a decoder-only language model."""

from dataclasses import dataclass
from typing import Any, ClassVar

from outrider.errors import ConfigError
from outrider.formats.description.base import ModelDescription
from outrider.formats.description.checks import check_model, check_usual_score
from outrider.formats.description.choices import (
    IN_ATTENTION,
    NEXT_LIMIT,
    POSITION_LIMIT,
    POSITIONS,
    SHIFTED_POSITIONS,
)

__all__ = ["LanguageModelDescription"]


@dataclass(kw_only=True)
class LanguageModelDescription(ModelDescription):
    """A decoder-only language model."""

    model_type: ClassVar[str] = "outrider_lm"
    layer_keys: ClassVar[tuple[str, ...]] = ("layers",)
    attention_keys: ClassVar[dict[str, tuple[str, bool]]] = {"attention": ("layers", True)}
    core_keys: ClassVar[dict[str, str]] = {"attention": "core"}

    layers: int = 6
    attention: dict[str, Any] | list[dict[str, Any]] | None = None
    """`{kind: ...}` for all layers, or a list with one per layer."""
    core: str = "attention"
    """What layers know the tokens before by: attention, or gru or ssru (which is faster) for a
    state of constant size."""
    memory: int = 0
    """Tokens remembered from one segment of a text to the next; `max_positions` is a segment."""
    next_tokens: int = 1
    """Tokens ahead that every position learns to predict; only the next one is used to decode."""
    bos_token_id: int = 3
    add_bos_token: bool | None = True
    """Begin every text with `bos_token_id`; null for as the tokenizer does."""

    def __post_init__(self) -> None:
        self.fill_attention("attention", "causal")
        check_model(self)
        self._check_recurrent()
        self._check_memory()
        if not 1 <= self.next_tokens <= NEXT_LIMIT:
            message = f"got {self.next_tokens}, expected 1 to {NEXT_LIMIT}"
            raise ConfigError("next_tokens", message)

    def layer_attention(self, key: str, layer: int) -> dict[str, Any]:
        """Return the attention of one layer; one with memory sees that and a segment at once."""
        spec = super().layer_attention(key, layer)
        if not self.memory or spec.get("kind") != "causal":
            return spec
        return {**spec, "kind": "sliding", "window": self.memory + self.max_positions}

    def _check_recurrent(self) -> None:
        """Refuse what lives in an attention where there is none."""
        if self.core == "attention":
            return
        if self.position in IN_ATTENTION:
            expected = ", ".join(one for one in POSITIONS if one not in IN_ATTENTION)
            message = f"{self.position!r} lives in an attention; with core {self.core} use one of"
            raise ConfigError("position", f"{message} {expected}")
        nothing = {"position_correlation": 0, "memory": 0, "num_key_value_heads": None}
        for key, value in {**nothing, "attention_dropout": 0.0}.items():
            if getattr(self, key) != value:
                raise ConfigError(key, f"has no effect with core {self.core}; leave it out")

    def _check_memory(self) -> None:
        if not 0 <= self.memory <= POSITION_LIMIT:
            raise ConfigError("memory", f"got {self.memory}, expected 0 to {POSITION_LIMIT}")
        if not self.memory:
            return
        if self.residual == "reversible":
            raise ConfigError("residual", "reversible layers have no memory; use add or gru")
        if self.depth == "shared":
            raise ConfigError("depth", "a memory is of layers, not of steps; use stacked with it")
        if self.position not in SHIFTED_POSITIONS:
            expected = ", ".join(SHIFTED_POSITIONS)
            raise ConfigError(
                "position",
                f"{self.position!r} counts from the start of a segment, which confuses a memory "
                f"with what is new; with memory use one of {expected}",
            )
        specs = self.attention if isinstance(self.attention, list) else [self.attention or {}]
        if any(spec.get("kind") != "causal" for spec in specs):
            raise ConfigError(
                "attention", "a memory is looked at whole; use {kind: causal} with it"
            )
        for key in ("position_correlation", "position_mlp"):
            if getattr(self, key):
                raise ConfigError(key, "does not reach into a memory; use one of the two")
        for spec in specs:
            check_usual_score("attention", spec, "a memory is looked at with")

    @property
    def first_token(self) -> int:
        """What a text begins with."""
        return self.bos_token_id

    @property
    def decoder_depth(self) -> int:
        """Layers of the decoder."""
        return self.layers
