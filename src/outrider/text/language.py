"""Which language a text is in, as far as can be told (extra `language`)."""

from typing import Any, cast

from outrider.errors import ConfigError, MissingExtraError

__all__ = ["LanguageGuess"]

SURE = 0.8
"""Confidence from which on a guess counts."""


class LanguageGuess:
    """Tells languages apart by the bytes they are written with, in a sixth of a millisecond."""

    def __init__(self) -> None:
        try:
            from py3langid import langid
        except ModuleNotFoundError:
            raise MissingExtraError("py3langid", "language", "telling languages apart") from None
        known: Any = langid.LanguageIdentifier  # untyped
        self._model = known.from_model_file(langid.MODEL_FILE, norm_probs=True)

    def check(self, key: str, language: str) -> None:
        """Raise an error that names the key if a language is none of those it knows."""
        labels = sorted(self._model.labels)
        if language not in labels:
            raise ConfigError(key, f"got {language!r}, expected one of {', '.join(labels)}")

    def rank(self, text: str) -> list[tuple[str, float]]:
        """Return all languages it knows with their chances, the likeliest first."""
        return cast("list[tuple[str, float]]", self._model.rank(text))

    def __call__(self, text: str) -> str | None:
        """Return the code of a language, such as `zh`; None for a text that could be several."""
        language, confidence = self._model.classify(text)
        return cast("str", language) if confidence >= SURE else None
