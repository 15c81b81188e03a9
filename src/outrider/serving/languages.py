"""Detection of the language of a text among the served ones."""

from collections.abc import Collection
from functools import cache
from typing import NamedTuple

from outrider.languages import match_codes
from outrider.text.language import LanguageGuess
from outrider.text.normalise import normalise, well_formed

DETECT_CHARACTERS = 2_000
"""Characters used for language detection."""

_language_guess = cache(LanguageGuess)


class Detected(NamedTuple):
    """A language that a text may be in."""

    code: str
    """Its normal code."""
    confidence: float
    """Probability among all languages that detection distinguishes, in percent."""


def detect_language(text: str, known: Collection[str]) -> list[Detected]:
    """Return the known languages that a text may be in, the most likely first.

    The known codes have their normal form.
    """
    text = normalise(well_formed(text[:DETECT_CHARACTERS]))
    if not text:
        return []
    found: dict[str, float] = {}
    for code, probability in _language_guess().rank(text):
        # Detection does not distinguish scripts of one language.
        matches = match_codes(code, known) or [one for one in known if one.startswith(f"{code}-")]
        for match in matches[:1]:
            found[match] = found.get(match, 0.0) + probability
    ranked = sorted(found.items(), key=lambda pair: -pair[1])
    return [Detected(code, round(100 * probability, 1)) for code, probability in ranked]
