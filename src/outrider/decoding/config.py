"""How to decode: one frozen config for every strategy.

A setting that belongs to another strategy is refused rather than ignored. If `strategy` is left
out, the settings given decide it: `beams: 5` alone means beam search.
"""

from typing import Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from outrider.config import Config

__all__ = ["DecodeConfig", "Strategy"]

Strategy = Literal["greedy", "sample", "beam"]

_OWNER: dict[str, Strategy] = {
    "beams": "beam",
    "length_penalty": "beam",
    "n_best": "beam",
    "temperature": "sample",
    "top_k": "sample",
    "top_p": "sample",
    "seed": "sample",
}


class DecodeConfig(Config):
    """Settings of one decoding run; the same for every row, except what a `Request` overrides."""

    strategy: Strategy = "greedy"
    """greedy takes the likeliest token, sample draws one, beam keeps the likeliest sequences."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Tokens to add at most, the end token included. null: a translation may take 3 tokens for
    each of the source and 30 more, a continuation 256; never more than the model can count to."""
    min_new_tokens: int = Field(default=0, ge=0)
    """The end token is forbidden before this many tokens."""
    beams: int = Field(default=4, ge=1)
    """Sequences kept in flight for each input. Only for beam."""
    length_penalty: float = 1.0
    """A finished sequence of n tokens scores (sum of log-probabilities) / n ** length_penalty.
    Only for beam."""
    n_best: int = Field(default=1, ge=1)
    """Sequences returned for each input, best first; at most `beams`. Only for beam."""
    temperature: float = Field(default=1.0, gt=0)
    """Logits are divided by it: under 1 is more cautious, over 1 more adventurous. Only for
    sample."""
    top_k: int | None = Field(default=None, ge=1)
    """Draw from the k likeliest tokens only. Only for sample."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Draw from the fewest tokens that hold this much probability. Only for sample."""
    seed: int = Field(default=0, ge=0)
    """Each row draws from its own random stream, so neighbours never change it. Only for sample."""
    scores: bool = False
    """Report the log-probability of greedy and sampled output too (costs a softmax a step); beam
    search always reports it."""
    suppress: tuple[int, ...] = ()
    """Token ids that are never produced."""
    force_eos: bool = False
    """The last token a row may have is the end token, as Marian's generation configs ask."""

    @model_validator(mode="before")
    @classmethod
    def _strategy_from_settings(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "strategy" in values:
            return values
        owners = [_OWNER[name] for name in values if name in _OWNER]
        return {"strategy": owners[0], **values} if owners else values

    @field_validator(*_OWNER)
    @classmethod
    def _has_an_effect(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        strategy, owner = info.data.get("strategy"), _OWNER[info.field_name]
        if strategy is not None and strategy != owner and value is not None:
            raise ValueError(
                f"{value!r} has no effect with strategy {strategy!r}; "
                f"set strategy to {owner!r} or leave {info.field_name} out"
            )
        return value

    @field_validator("n_best")
    @classmethod
    def _fits_the_beam(cls, n_best: int, info: ValidationInfo) -> int:
        beams = info.data.get("beams", n_best)
        if n_best > beams:
            raise ValueError(f"{n_best} is more than beams ({beams}); raise beams or lower n_best")
        return n_best

    @model_serializer(mode="wrap")
    def _own_settings(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what has no effect, so that a saved config can be read again."""
        values: dict[str, Any] = serialize(self)
        return {k: v for k, v in values.items() if _OWNER.get(k, self.strategy) == self.strategy}
