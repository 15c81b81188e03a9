"""The `evaluate` section of a run config."""

from typing import Self

from pydantic import Field, model_validator

from outrider.config import Config
from outrider.decoding.config import DecodeConfig

__all__ = ["EvaluateConfig"]


class EvaluateConfig(Config):
    """What a finished model is tested on: a source with its reference, or a text."""

    source: str | None = None
    """Sentences to translate, one a line, plain or .gz."""
    reference: str | None = None
    """Their translations by people, line by line."""
    text: str | None = None
    """Text a language model has to predict."""
    tail: float = Field(default=1.0, gt=0, le=1)
    """Predict only this last share of the text, counted in characters."""
    decode: DecodeConfig = DecodeConfig(strategy="beam", beams=5)
    """How translations are searched for."""
    tokenize: str = "13a"
    """SacreBLEU's tokenizer: 13a for most languages, zh for Chinese."""

    @model_validator(mode="after")
    def _one_test(self) -> Self:
        if (self.source is None) != (self.reference is None):
            raise ValueError("source and reference belong together; give both")
        if (self.source is None) == (self.text is None):
            raise ValueError("give either source and reference, or text")
        return self
