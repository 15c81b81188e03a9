"""The values of a `DecodeConfig` without pydantic, which takes 0.2 s to import.

`DecodeConfig` validates and documents them; a test compares the two classes.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from outrider.decoding.sampling import Sampling

Mode = Literal["ar", "tandem", "parallel"]
Strategy = Literal["greedy", "sample", "beam"]


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """Settings of one decoding run, documented in `DecodeConfig`."""

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
        """Return a copy with some values changed."""
        return replace(self, **values)

    @property
    def sampling(self) -> Sampling:
        """The sampling settings."""
        return Sampling(self.temperature, self.top_k, self.top_p)
