"""Faults of a translation that can be seen without a reference, per sentence.

The checks compare a translation with its source: repetitions that the source does not have, a
translation that stops early, has no words, repeats the source, or is in another language. The
bounds are set so that hardly any human translation is reported (`lab/studies/guards.py`).
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Literal

from outrider.languages import normalise_code
from outrider.text.language import FEWEST_WORDS, LanguageGuess, count, foreign_script, scripts_of

Fault = Literal["copied", "truncated", "language", "loop", "empty"]
FAULTS: tuple[Fault, ...] = ("copied", "truncated", "language", "loop", "empty")
"""All faults, the least bad first."""

_DENSE = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Characters of scripts without spaces between words."""
_UNIT = re.compile(rf"[{_DENSE}]|[^\W_{_DENSE}]+")
"""A character of such a script, or a word."""
_DENSE_UNIT = re.compile(rf"[{_DENSE}]")
_LETTER = re.compile(r"[^\W\d_]")
_IN_WORD = re.compile(r"(\w{1,8}?)\1{5,}")
"""A part of a word that is repeated five times or more."""
LONG_WORD = 12
"""Fewest letters of a repetition inside a word."""
PERIODS = 16
"""Most units of a phrase whose consecutive repetitions are counted."""
MANY, REPEATED = 16, 0.5
"""Fewest units of a text whose repeated trigrams are counted, and their share in a loop."""

DENSE_SIZE = 3
"""Letters that one character of a dense script stands for."""
SHORT = 24
"""Letters of a source below which its length predicts that of the translation badly."""
FEWEST_LETTERS, FEWEST_UNFINISHED = 0.33, 0.7
"""Least length of a translation relative to its source: of any, and of one whose last sentence has
no full stop although that of the source has one."""
_END = re.compile(r"[.!?…。！？；।॥۔؟।][\"'”’»›)\]」』】）〉》\s]*\Z")

FEWEST_COPIED, COPIED = 3, 0.9
"""Fewest lower-case words of a copy, and the share of the words that are those of the source."""
FEWEST_DENSE = 6
"""The same for characters of dense scripts."""

DETECTED, ALIKE = 60, 0.3
"""Fewest letters whose language is detected, and the share of words in common with the source from
which a model of one language pair may have left its language."""
SURE, UNLIKELY = 0.99, 1e-3
"""Least probability of another language, and greatest of the right one."""
_CLOSE = [
    *({"nb", "no", "nn", "da"}, {"hr", "bs", "sr"}, {"id", "ms", "jv"}, {"pt", "gl", "ext"}),
    *({"cs", "sk"}, {"es", "gl", "an", "ext"}, {"fr", "oc", "wa"}, {"de", "lb"}, {"nl", "af"}),
    *({"zh", "yue", "wuu", "lzh"}, {"fa", "prs"}, {"en", "pcm", "sco"}, {"it", "lmo", "vec"}),
]
"""Languages that detection confuses."""


def check(
    source: str,
    translation: str,
    *,
    finish: str = "eos",
    target: str | None = None,
    several: bool = False,
) -> Fault | None:
    """Return the fault of the translation of a sentence, if it has one.

    Args:
        source: The sentence.
        translation: Its translation.
        finish: Why decoding ended; `length` is a fault.
        target: Code of the language of the translation; None if it is unknown.
        several: Whether the model writes several languages, so that the language of every long
            translation is detected.
    """
    read, written = _units(source), _units(translation)
    if not written:
        return "empty" if read else None
    if _is_loop(read, written):
        return "loop"
    if finish == "length" or _is_truncated(source, translation):
        return "truncated"
    if _is_copied(source, translation, read, written, target):
        return "copied"
    if target is not None and _is_foreign(translation, read, written, target, several):
        return "language"
    return None


def rank(fault: Fault | None) -> int:
    """Return how bad a fault is: 0 for none."""
    return 0 if fault is None else FAULTS.index(fault) + 1


def _units(text: str) -> list[str]:
    return _UNIT.findall(text.casefold())


def _is_loop(read: Sequence[str], written: Sequence[str]) -> bool:
    """Whether a translation repeats words more often than its source."""
    if len(set(written)) == len(written):
        return _repeats_inside(read, written)
    half = len(written) // 2
    if written[:half] == written[half:] and (half > 1 or not _DENSE_UNIT.match(written[0])):
        middle = len(read) // 2
        if read[:middle] != read[middle:]:
            return True
    if max(Counter(written).values()) > 2:
        before, after = _runs(read), _runs(written)
        single = 1 if _DENSE_UNIT.match(written[0]) else 0
        most = max(before.values(), default=1)
        for period, times in after.items():
            if times >= max(most + 2 + (single if period == 1 else 0), 1.5 * most + 1):
                return True
        if len(written) >= MANY and _repeated(written) > max(REPEATED, 2 * _repeated(read)):
            return True
    return _repeats_inside(read, written)


def _runs(units: Sequence[str]) -> dict[int, int]:
    """Return how often a phrase of each length is repeated without a pause, at most."""
    most = {}
    for period in range(1, min(PERIODS, len(units) // 2) + 1):
        run = longest = 0
        for one, other in zip(units, units[period:], strict=False):
            run = run + 1 if one == other else 0
            longest = max(longest, run)
        most[period] = longest // period + 1
    return most


def _repeated(units: Sequence[str]) -> float:
    """Return the share of trigrams that occurred before."""
    trigrams = list(zip(units, units[1:], units[2:], strict=False))
    return 1 - len(set(trigrams)) / len(trigrams) if trigrams else 0.0


def _repeats_inside(read: Sequence[str], written: Sequence[str]) -> bool:
    """Whether a long word repeats a part, as none of the source does."""

    def repeats(words: Sequence[str]) -> bool:
        return any(
            len(match[0]) >= LONG_WORD
            for word in words
            if len(word) >= LONG_WORD and (match := _IN_WORD.search(word))
        )

    return repeats(written) and not repeats(read)


def _size(text: str) -> int:
    dense = len(_DENSE_UNIT.findall(text))
    return len(_LETTER.findall(text)) + (DENSE_SIZE - 1) * dense


def _is_truncated(source: str, translation: str) -> bool:
    size = _size(source)
    if size < SHORT:
        return False
    share = _size(translation) / size
    unfinished = _END.search(source) and not _END.search(translation)
    return share < (FEWEST_UNFINISHED if unfinished else FEWEST_LETTERS)


def _is_copied(
    source: str, translation: str, read: Sequence[str], written: Sequence[str], target: str | None
) -> bool:
    """Whether a translation has the words of its source; names, numbers and code may be copied."""
    common = (Counter(read) & Counter(written)).total()
    if common < COPIED * max(len(read), len(written)):
        return False
    words = sum(word.islower() and word.isalpha() for word in translation.split())
    if words < FEWEST_COPIED and len(_DENSE_UNIT.findall(translation)) < FEWEST_DENSE:
        return False
    # A source that is in the target language already is its own translation.
    return target is None or _size(source) < DETECTED or not _is_in(source, target)


def _is_foreign(
    translation: str, read: Sequence[str], written: Sequence[str], target: str, several: bool
) -> bool:
    """Whether a translation is in another script or another language than it should be."""
    letters: Counter[str] = Counter()
    words = count(translation, letters)
    if foreign_script(letters, words, scripts_of([target])):
        return True
    if words < FEWEST_WORDS or letters.total() < DETECTED:
        return False
    common = (Counter(read) & Counter(written)).total()
    return (several or common >= ALIKE * len(written)) and _is_another(translation, target)


@cache
def _detector() -> LanguageGuess | None:
    return LanguageGuess() if find_spec("py3langid") else None


def _is_another(text: str, target: str) -> bool:
    """Whether a text is surely not in this language; False without the extra `language`."""
    detector = _detector()
    if detector is None:
        return False
    ranked = detector.rank(text)
    right = _codes(target)
    likely = sum(probability for code, probability in ranked if code in right)
    known = any(code in right for code, _ in ranked)
    return known and ranked[0][1] >= SURE and likely <= UNLIKELY


def _is_in(text: str, target: str) -> bool:
    detector = _detector()
    return detector is not None and detector.rank(text)[0][0] in _codes(target)


@cache
def _codes(target: str) -> set[str]:
    """Return the codes of a language, and of those that detection confuses with it."""
    code = normalise_code(target).partition("-")[0]
    return {code}.union(*(group for group in _CLOSE if code in group))
