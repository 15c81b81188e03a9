"""What loops are told: the values of a `DecodeConfig`, which checks and explains them.

Plain values in a class of their own: what checks takes a fifth of a second to import, and where
nobody asks for anything there is nothing to check. A test compares the two classes.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from outrider.decoding.sampling import Sampling

__all__ = ["DecodeSettings", "Mode", "Strategy"]

Mode = Literal["ar", "tandem", "parallel"]
Strategy = Literal["greedy", "sample", "beam"]


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """Settings of one decoding run; `DecodeConfig` says what each means."""

    mode: Mode = "ar"
    strategy: Strategy = "greedy"
    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    beams: int = 4
    length_penalty: float = 1.0
    n_best: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    scores: bool = False
    suppress: tuple[int, ...] = ()
    force_eos: bool = False
    gamma: float = 0.0
    draft_tokens: int | None = None
    strict: bool = False
    decoder: Literal["ctc", "drafter"] | None = None
    iterations: int = 0
    candidates: int = 1

    def changed(self, **values: Any) -> "DecodeSettings":
        """Return settings that differ in some values."""
        return replace(self, **values)

    @property
    def sampling(self) -> Sampling:
        """How the model's distribution is shaped before a token is drawn."""
        return Sampling(self.temperature, self.top_k, self.top_p)
