"""Fields that several APIs share; every one has a bound."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outrider.bounds import BOUNDS
from outrider.serving.job import Priority

__all__ = ["Code", "Options", "PriorityName", "Seconds", "read_priority"]

Code = Annotated[str, Field(min_length=2, max_length=20)]
"""A language, as the model names it."""
PriorityName = Literal["low", "normal", "high"]
Seconds = Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)]


def _number(key: str) -> Any:
    least, most = BOUNDS[key]
    return Field(default=None, ge=least, le=most, allow_inf_nan=False)


def _count(key: str) -> Any:
    least, most = BOUNDS[key]
    return Field(default=None, ge=least, le=most)


class Options(BaseModel):
    """How to decode: the fields of `DecodeConfig` that a client may set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["ar", "tandem", "parallel"] | None = None
    strategy: Literal["greedy", "sample", "beam"] | None = None
    max_new_tokens: int | None = _count("max_new_tokens")
    min_new_tokens: int | None = _count("min_new_tokens")
    beams: int | None = _count("beams")
    length_penalty: float | None = _number("length_penalty")
    candidates: int | None = _count("candidates")
    temperature: float | None = _number("temperature")
    top_k: int | None = _count("top_k")
    top_p: float | None = _number("top_p")
    seed: int | None = Field(default=None, ge=0, le=2**53)
    gamma: float | None = _number("gamma")
    draft_tokens: int | None = _count("draft_tokens")
    strict: bool | None = None
    decoder: Literal["ctc", "drafter"] | None = None
    iterations: int | None = _count("iterations")

    @property
    def given(self) -> dict[str, Any]:
        """What was set."""
        return {key: value for key, value in self if value is not None}


def read_priority(name: PriorityName | None, most: Priority) -> Priority:
    """Return the priority that is asked for, or as much of it as is allowed."""
    return min(Priority[name], most) if name else min(Priority.normal, most)
