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

DEFAULT_METRICS = ("bleu", "chrf")
_DEFAULTS = {"split": True, "metrics": DEFAULT_METRICS}


class EvaluateConfig(Config):
    """Test set of a finished model: a source with its reference, or a text."""

    source: str | None = None
    """Sentences to translate, one per line, plain or .gz."""
    reference: str | None = None
    """Reference translations, line by line."""
    text: str | None = None
    """Text for the perplexity of a language model, or for masked prediction."""
    tail: float = Field(default=1.0, gt=0, le=1)
    """Score only this last share of the text, counted in characters."""
    decode: DecodeConfig = DecodeConfig(strategy="beam", beams=5)
    """Decode options."""
    tokenize: Annotated[str, AfterValidator(check_tokenizer)] = "auto"
    """SacreBLEU's tokenizer: auto selects by the script of the references, 13a for most languages,
    zh for Chinese, char for Japanese, Korean and Thai (or ja-mecab, ko-mecab if installed).
    Validation uses the same."""
    metrics: tuple[str, ...] = DEFAULT_METRICS
    """Metrics: bleu, chrf, rouge, accuracy, macro_f1, exact_match, token_f1."""
    split: bool = True
    """Translate a line sentence by sentence; false is for models trained on whole lines. Also used
    by validation, and the default of the finished model."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Configs that were saved before these keys existed remain equal.
        values: dict[str, Any] = serialize(self)
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
