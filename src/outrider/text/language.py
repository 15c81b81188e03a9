"""Language identification (extra `language`), and a warning for texts in an unexpected script."""

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, cast
from unicodedata import name

from outrider.errors import ConfigError, MissingExtraError, ScriptWarning

SURE = 0.8
"""Lowest confidence of a guess."""


class LanguageGuess:
    """Identifies the language of a text by its bytes, in about 0.2 ms."""

    def __init__(self) -> None:
        try:
            from py3langid import langid
        except ModuleNotFoundError as error:
            raise MissingExtraError("py3langid", "language", "identifying languages") from error
        identifier: Any = langid.LanguageIdentifier  # untyped
        self._model = identifier.from_model_file(langid.MODEL_FILE, norm_probs=True)

    def check(self, key: str, language: str) -> None:
        """Refuse a language that the model does not have."""
        labels = sorted(self._model.labels)
        if language not in labels:
            raise ConfigError(key, f"got {language!r}, expected one of {', '.join(labels)}")

    def rank(self, text: str) -> list[tuple[str, float]]:
        """Return all languages with their probabilities, the most probable first."""
        return cast("list[tuple[str, float]]", self._model.rank(text))

    def __call__(self, text: str) -> str | None:
        """Return the code of a language, such as `zh`; None if it is uncertain."""
        language, confidence = self._model.classify(text)
        return cast("str", language) if confidence >= SURE else None


_TABLE = """
LATIN Latn: af az bs ca ceb cs cy da de en eo es et eu fi fil fr fy ga gd gl ha hr ht hu id ig is
 it jv ku la lb lt lv mg mi ms mt nb nl nn no oc pl pt ro sk sl so sq sr su sv sw tk tl tr uz vi xh
 yo zu deu eng fra ita nld por spa
CYRILLIC Cyrl: az be bg kk ky mk mn ru sr tg tk tt uk uz rus ukr
ARABIC Arab: ar az ckb fa ku ps sd ug ur uz ara fas
HEBREW Hebr: he iw yi heb
GREEK Grek: el ell
ARMENIAN Armn: hy
GEORGIAN Geor: ka
ETHIOPIC Ethi: am ti
DEVANAGARI Deva: hi mr ne sa hin
BENGALI Beng: as bn
GURMUKHI Guru: pa
GUJARATI Gujr: gu
ORIYA Orya: or
TAMIL Taml: ta
TELUGU Telu: te
KANNADA Knda: kn
MALAYALAM Mlym: ml
SINHALA Sinh: si
THAI Thai: th tha
LAO Laoo: lo
KHMER Khmr: km
MYANMAR Mymr: my
TIBETAN Tibt: bo dz
CJK Hans Hant Hani Jpan Kore: zh zho cmn lzh wuu yue ja jpn ko kor
HIRAGANA Jpan: ja jpn
KATAKANA Jpan: ja jpn
HANGUL Hang Kore: ko kor
"""
"""First word of a letter's Unicode name, codes of ISO 15924, and codes of languages."""
_SCRIPTS = {
    row.split()[0]: {*row.replace(":", " ").split()[1:]}
    for row in _TABLE.replace("\n ", " ").strip().splitlines()
}
_DENSE = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL"}
"""Scripts whose letters count three times."""
_ADDRESS = re.compile(r"://|www\.|@")
_CODE = re.compile("[A-Z][a-z]{3}")
ENOUGH = 200
"""Letters that are counted before the decision."""
FEWEST_WORDS = 3


def watched(lines: Iterable[str], languages: Sequence[str]) -> Iterator[str]:
    """Yield all lines; warn once if the first ones are in a script that no language uses."""
    used = scripts_of(languages)
    counts: Counter[str] = Counter()
    words = 0
    decided = not used
    for line in lines:
        if not decided:
            words += count(line, counts)
            if decided := counts.total() >= ENOUGH:
                _warn(counts, words, used, languages)
        yield line
    if not decided:
        _warn(counts, words, used, languages)


def scripts_of(languages: Sequence[str]) -> set[str]:
    """Return the scripts of languages (`en`, `en_XX`, `zho_Hans`); none if one is unknown."""
    used: set[str] = set()
    for language in languages:
        parts = re.split("[-_]", language.strip("_"))
        code = next(filter(_CODE.fullmatch, parts), parts[0])
        scripts = {script for script, names in _SCRIPTS.items() if code in names}
        if not scripts:
            return set()
        used |= scripts
    return used


def count(line: str, counts: Counter[str]) -> int:
    """Count letters by script, outside of addresses; return the number of lower-case words."""
    words = 0
    for word in line.split():
        words += word.islower()
        if _ADDRESS.search(word):
            continue
        scripts = Counter(map(_script, filter(str.isalpha, word)))
        for script, number in scripts.items():
            if script in _DENSE:
                counts[script] += 3 * number
            elif script in _SCRIPTS and number > 1:
                counts[script] += number
    return words


@lru_cache(1 << 14)
def _script(letter: str) -> str:
    return name(letter, "").partition(" ")[0]


def foreign_script(counts: Counter[str], words: int, used: set[str]) -> str:
    """Return the script of a text if it is none of those used; empty if it is, or in doubt."""
    if not used:
        return ""
    others = Counter(counts)
    for script in used:
        del others[script]
    script = max(others, key=others.__getitem__, default="")
    own = counts.total() - others.total()
    foreign = others.total() > own
    if script == "LATIN":  # names and code in Latin letters occur in texts of every language
        foreign = own == 0 and words >= FEWEST_WORDS
    return script if foreign else ""


def _warn(counts: Counter[str], words: int, used: set[str], languages: Sequence[str]) -> None:
    if script := foreign_script(counts, words, used):
        shown = "Chinese" if script == "CJK" else script.capitalize()
        warnings.warn(
            f"the text is in {shown} script, but the model reads {' or '.join(languages)}; choose "
            "a model, or --from, for the language of the text",
            ScriptWarning,
            stacklevel=3,
        )
