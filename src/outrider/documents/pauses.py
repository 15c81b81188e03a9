"""Division of a text at its pauses: after punctuation, before a conjunction, between words."""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Sequence

_CHINESE = "\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
"""Scripts without spaces between words, and their punctuation."""
_IS_CHINESE = re.compile(f"[{_CHINESE}]")
_BREAK = re.compile(rf"(?<=\s)(?=\S)|(?<=[{_CHINESE}])(?=\S)|(?<=\S)(?=[{_CHINESE}])")
_STOPS = frozenset(".!?…。！？｡؟।")
_COMMAS = frozenset(",;:，、；：،؛–—")
_QUOTES = "\"'”’»)]」』）】"
_NO_FIRST = frozenset(
    "、。，．・：；？！゛゜ヽヾゝゞ々ー」』）】》〉〕］｝〗％…‥～ァィゥェォッャュョヮぁぃぅぇぉっゃゅょゎ,.!?;:)]}%”’»"
)
"""Characters that no line begins with."""
_NO_LAST = frozenset("「『（【《〈〔［｛〖([{“‘«¿¡$€£¥#@")
"""Characters that no line ends with."""
_CONJUNCTIONS = frozenset(
    """
    and but or because that which who when where while if so than
    und aber oder weil dass wenn als denn et mais ou parce qui quand si donc
    y pero o porque cuando e mas quando ma che perché se en maar of omdat dat toen
    и но или что потому когда если а чтобы который
    """.split()  # noqa: SIM905
)
_WORD = re.compile(r"\w+")
_SHORT = re.compile(r"(?<!\w)[^\W\d_]{1,3}\Z")
"""Often an article, a preposition or an auxiliary, which belongs to the next word."""
_WIDE = frozenset("WF")


def columns(text: str) -> int:
    """Width of a text in a fixed-width font; Chinese characters are two columns wide."""
    return sum(1 + (unicodedata.east_asian_width(character) in _WIDE) for character in text)


def joint(before: str, after: str) -> str:
    """Return what separates two lines of a paragraph: a space, nothing between Chinese ones."""
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return ""
    return "" if _IS_CHINESE.match(before[-1]) and _IS_CHINESE.match(after[0]) else " "


def _price(text: str, at: int) -> float | None:
    """Rate a break before character `at`: 0 is best, None is none."""
    before, after = text[at - 1], text[at]
    spaced = before.isspace()
    if not spaced and (
        after in _NO_FIRST
        or before in _NO_LAST
        or before.isdecimal()
        or after.isdecimal()
        or unicodedata.category(after) in ("Mn", "Mc", "Me", "Cf")
        or unicodedata.category(before) == "Cf"
    ):
        return None
    end = at
    while end and (text[end - 1].isspace() or text[end - 1] in _QUOTES):
        end -= 1
    last = text[end - 1] if end else ""
    if last in _STOPS:
        return 0.0
    if last in _COMMAS:
        return 0.2
    word = _WORD.match(text, at, at + 12)
    if spaced and word and word[0].lower() in _CONJUNCTIONS:
        return 0.4
    return 0.8 if _SHORT.search(text, max(0, end - 4), end) else 0.6


def _covered(length: int, ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Count the ranges around each position between two characters."""
    steps = [0] * (length + 2)
    for start, end in ranges:
        if end - start > 1:
            steps[start + 1] += 1
            steps[end] -= 1
    depth, counts = 0, []
    for step in steps:
        depth += step
        counts.append(depth)
    return counts


def cut(
    text: str,
    shares: Sequence[float],
    wanted: Sequence[int] = (),
    whole: Iterable[tuple[int, int]] = (),
    together: Iterable[tuple[int, int]] = (),
) -> list[int]:
    """Divide a text into parts of about these shares; return the first character of each but one.

    A cut is near its `wanted` position, by default where the shares put it, at the best pause
    there; never inside a word or a range of `whole`, and inside one of `together` only where there
    is no other place. Parts at the end are empty if there are too few places.
    """
    count, total = len(shares) - 1, sum(shares) or 1
    kept, grouped = _covered(len(text), whole), _covered(len(text), together)
    places, prices = [], []
    for match in _BREAK.finditer(text):
        at = match.start()
        price = None if kept[at] else _price(text, at)
        if price is not None:
            places.append(at)
            prices.append(price + bool(grouped[at]))
    if len(places) <= count:
        return places + [len(text)] * (count - len(places))
    cuts, first, sum_before = [], 0, 0.0
    for index in range(count):
        sum_before += shares[index]
        ideal = sum_before / total * len(text)
        before, after = (share / total * len(text) for share in shares[index : index + 2])
        if len(wanted) == count:
            ideal = min(max(wanted[index], ideal - before / 2), ideal + after / 2)
        radius = max((before + after) / 4, 8)
        last = len(places) - (count - index)  # leaves a place for each of the others
        low = max(first, min(bisect_left(places, ideal - radius), last))
        high = min(last, max(bisect_left(places, ideal + radius), first))
        best = min(
            range(low, high + 1),
            key=lambda place: prices[place] + abs(places[place] - ideal) / (2 * radius),
        )
        cuts.append(places[best])
        first = best + 1
    return cuts
