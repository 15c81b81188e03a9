"""Sentences: where a text may be taken apart, and how it is put together again.

The rules know punctuation of many scripts but no language: a stop ends a sentence, unless a decimal
number, an initial, an abbreviation or a small letter after it says otherwise. Where they are in
doubt they do not split. Nothing is lost: the parts of a text, joined, are the text.

Every step is linear in the length of the text, whatever the text is.
"""

import re
import unicodedata
from collections.abc import Callable

__all__ = ["cut", "join", "split"]

STRONG = "。！？｡．।॥؟۔։።፧။។៕"
"""Ends a sentence wherever it stands: its script puts no space after it, or has no other use."""
WEAK = ".!?…‼⁇⁈⁉"
"""Ends a sentence before white space, if nothing speaks against it."""
CLOSING = "\"'”’»›)\\]}」』】）〉》〕｣"
OPENING = "\"'“‘„«‹([{「『【（〈《〔｢¿¡-–—"

_ABBREVIATIONS = """
    mr mrs ms dr prof st mt sen rep gov gen col capt lt sgt rev hon pres supt messrs vs cf approx
    hr fr frl ing dipl bzw ca evtl ggf inkl vgl sog geb gest hl
    mme mlle mgr sra srta lic sig dott avv
    jan feb mrz apr jun jul aug sept sep okt oct nov dez dec
"""
_NUMBERED = "no nr nos fig figs vol pp p abb abs art kap bd ch eq sec tab núm"
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
"""Words whose dot does not end a sentence, lower case."""
NUMBERED = frozenset(_NUMBERED.split())
"""Words whose dot does not end a sentence if a number follows."""

_STOP = re.compile(rf"(?<![{STRONG}{WEAK}])([{STRONG}{WEAK}]++)[{CLOSING}]*+(\s*+)")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_PAUSE = re.compile(r"(?P<clause>[,;:]\s+|[，、；：،؛]\s*)|\s+")
_LONGEST_ABBREVIATION = 24


def split(text: str) -> list[str]:
    """Split into sentences, each with the white space after it; joined they are `text`."""
    sentences: list[str] = []
    for line in text.splitlines(keepends=True):
        start = 0
        for stop in _STOP.finditer(line):
            if stop.end() < len(line) and _ends_sentence(line, stop):
                sentences.append(line[start : stop.end()])
                start = stop.end()
        if start < len(line):
            sentences.append(line[start:])
    return sentences


def cut(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Halve a text until every piece fits: at a clause, else at white space, else anywhere."""
    if len(text) < 2 or fits(text.strip()):
        return [text]
    middle = _cutting_point(text)
    return cut(text[:middle], fits) + cut(text[middle:], fits)


def join(parts: list[str], gaps: list[str]) -> str:
    """Put translations together; `gaps` is the white space that stood between their sources.

    Where source and target write differently the gap follows the target: a space between sentences
    of scripts that use one, none between Chinese or Japanese ones.
    """
    text = ""
    for part, gap in zip(parts, ["", *gaps], strict=True):
        text += _fitting_gap(text, gap, part) + part
    return text


def _ends_sentence(line: str, stop: re.Match[str]) -> bool:
    marks, space = stop.group(1), stop.group(2)
    after = line[stop.end() : stop.end() + 8].lstrip(OPENING)[:1]
    if any(mark in STRONG for mark in marks):
        return not (marks[-1] == "．" and after.isdigit())
    if not space or after.islower():
        return False
    if marks != ".":
        return True
    before = line[max(0, stop.start() - _LONGEST_ABBREVIATION) : stop.start()]
    words = before.split()
    return not words or not _dot_belongs_to(words[-1].lstrip(OPENING), after)


def _dot_belongs_to(word: str, after: str) -> bool:
    """Whether the dot after `word` is part of it: an initial, an abbreviation, an ordinal."""
    lower = word.lower()
    if lower in ABBREVIATIONS or _INITIALS.fullmatch(word):
        return True
    if lower in NUMBERED and after.isdigit():
        return True
    return word.isdigit() and len(word) <= 2


def _cutting_point(text: str) -> int:
    """Return a place strictly inside the text, in its middle half if there is a good one."""
    middle, quarter = len(text) // 2, len(text) // 4
    pauses = list(_PAUSE.finditer(text, quarter, len(text) - quarter))
    clauses = [pause for pause in pauses if pause["clause"]]
    places = [pause.end() for pause in clauses or pauses]
    best = min(places, key=lambda place: abs(place - middle), default=middle)
    # Keep accents with their letter, but do not follow an endless run of them.
    best += next(
        (n for n, c in enumerate(text[best : best + 8]) if not unicodedata.combining(c)), 0
    )
    return min(max(1, best), len(text) - 1)


def _fitting_gap(left: str, gap: str, right: str) -> str:
    if not left or not right:
        return gap if left else ""
    dense = _is_dense(left[-1]) and _is_dense(right[0])
    if gap == "":
        return "" if dense or _is_dense(left[-1]) else " "
    return "" if gap == " " and dense else gap


def _is_dense(character: str) -> bool:
    """Whether the script of this character puts no spaces between sentences."""
    if unicodedata.east_asian_width(character) not in "WF":
        return False
    return "HANGUL" not in unicodedata.name(character, "")
