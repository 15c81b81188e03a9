"""The `evaluate` section of a run config."""

from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from outrider.config import Config
from outrider.decoding.config import DecodeConfig
from outrider.evaluation.metrics import check_metrics, check_tokenizer

__all__ = ["EvaluateConfig"]

USUAL = ("bleu", "chrf")
_DEFAULTS = {"split": True, "metrics": USUAL}


class EvaluateConfig(Config):
    """What a finished model is tested on: a source with its reference, or a text."""

    source: str | None = None
    """Sentences to translate, one a line, plain or .gz."""
    reference: str | None = None
    """Their translations by people, line by line."""
    text: str | None = None
    """Text a language model has to predict, or a masked one to fill in."""
    tail: float = Field(default=1.0, gt=0, le=1)
    """Predict only this last share of the text, counted in characters."""
    decode: DecodeConfig = DecodeConfig(strategy="beam", beams=5)
    """How translations are searched for."""
    tokenize: Annotated[str, AfterValidator(check_tokenizer)] = "auto"
    """SacreBLEU's tokenizer: auto takes the one for the script of the references, 13a for most
    languages, zh for Chinese, char for Japanese, Korean and Thai (or ja-mecab, ko-mecab where
    installed). Validation counts the same way."""
    metrics: tuple[str, ...] = USUAL
    """What is scored: bleu, chrf, rouge, accuracy, macro_f1, exact_match, token_f1."""
    split: bool = True
    """Translate a line sentence by sentence; false shows it whole to a model trained on that.
    Validation does the same, and the finished model whenever nobody says otherwise."""

    @model_serializer(mode="wrap")
    def _without_what_is_usual(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)  # runs from before these keys are the same runs
        left_out = [key for key in ("split", "metrics") if getattr(self, key) == _DEFAULTS[key]]
        return {key: value for key, value in values.items() if key not in left_out}

    @model_validator(mode="after")
    def _one_test(self) -> Self:
        if (self.source is None) != (self.reference is None):
            raise ValueError("source and reference belong together; give both")
        if (self.source is None) == (self.text is None):
            raise ValueError("give either source and reference, or text")
        check_metrics(self.metrics, key="evaluate.metrics")
        return self
