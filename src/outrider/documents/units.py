"""Units of a translation: the pieces between which mark-up may stand, and their source."""

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from outrider.text.alignment import Alignment, Link, Range

_SPACE, _WORD, _JOINED, _SINGLE, _FLAG = range(5)
_JOINER = "\u200d"
_DENSE = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF))
"""Scripts that put no space between words, beside those of East Asia."""

_LONGER = 2
"""How much longer a word is than those that only accompany it."""


@dataclass(slots=True)
class Unit:
    """A word, another visible character, or a copy of a kept part."""

    start: int
    end: int
    text: str
    gap: str
    """White space before it."""
    leaf: int | None = None
    """The innermost span of its source: -1 outside of all spans, None without a link."""
    source: Range | None = None
    kept: bool = False
    """Whether it is the text of the kept span `leaf`."""
    dropped: bool = False
    """Whether it is left out, because the text of a kept span takes its place."""


def divide(text: str, copies: Sequence[Range]) -> tuple[list[Unit], str]:
    """Divide a translation into units; return them and the white space after the last.

    Each of the copies, which stand apart and in order, is one unit.
    """
    units: list[Unit] = []
    end = 0
    for start, stop in copies:
        end = _divide_between(text, end, start, units)
        units.append(Unit(start, stop, text[start:stop], text[end:start]))
        end = stop
    end = _divide_between(text, end, len(text), units)
    return units, text[end:]


def _divide_between(text: str, end: int, stop: int, units: list[Unit]) -> int:
    """Add the units from `end` to `stop`; return the end of the last."""
    begun, before = False, _SPACE
    for at in range(end, stop):
        kind = _kind(text[at])
        if kind == _SPACE:
            begun = False
            continue
        same = kind == before and kind in (_WORD, _FLAG)
        if begun and (kind == _JOINED or same or text[at - 1] == _JOINER):
            units[-1].text += text[at]
            units[-1].end = end = at + 1
        else:
            units.append(Unit(at, at + 1, text[at], text[end:at]))
            begun, end = True, at + 1
        before = before if kind == _JOINED else kind
    return end


@lru_cache(maxsize=4096)
def _kind(character: str) -> int:
    code = ord(character)
    if character.isspace():
        return _SPACE
    if unicodedata.category(character)[0] == "M" or character == _JOINER:
        return _JOINED
    if 0x1F3FB <= code <= 0x1F3FF:  # colours of skin
        return _JOINED
    if 0x1F1E6 <= code <= 0x1F1FF:  # two of them are a flag
        return _FLAG
    if not character.isalnum() and character not in "_\u200c":
        return _SINGLE
    if any(first <= code <= last for first, last in _DENSE):
        return _SINGLE
    wide = unicodedata.east_asian_width(character) in "WF"
    return _SINGLE if wide and not unicodedata.name(character, "").startswith("HANGUL") else _WORD


def inside_word(text: str, start: int, end: int) -> bool:
    """Whether a range begins or ends within a word."""
    return any(
        0 < place < len(text) and _kind(text[place - 1]) == _kind(text[place]) == _WORD
        for place in (start, end)
    )


def link(
    units: Sequence[Unit], alignment: Alignment, starts: Sequence[int], leaves: Sequence[int]
) -> None:
    """Set the source of each unit; `leaves[i]` is the innermost span from `starts[i]` on.

    A unit of several tokens gets the leaf with most of its characters.
    """
    ends = [unit.end for unit in units]
    votes: list[dict[int, tuple[int, int, int]]] = [{} for _ in units]
    for (start, end), (first, last) in alignment:
        leaf = _leaf(start, end, starts, leaves)
        number = bisect_right(ends, first)
        while number < len(units) and units[number].start < last:
            unit = units[number]
            overlap = min(last, unit.end) - max(first, unit.start)
            count, low, high = votes[number].get(leaf, (0, start, end))
            votes[number][leaf] = count + overlap, min(low, start), max(high, end)
            number += 1
    for unit, found in zip(units, votes, strict=True):
        if found:
            unit.leaf = max(found, key=lambda leaf: found[leaf][0])
            unit.source = found[unit.leaf][1:]


def loosen(units: Sequence[Unit], source: str) -> None:
    """Take the leaf from words that attention links with a word for want of one of their own.

    These are words linked with punctuation, and short words beside a longer one with the same
    source, such as prepositions. They are inside a span only if linked words around them are.
    """
    for number, unit in enumerate(units):
        if unit.source is None or unit.kept or not unit.text[0].isalnum():
            continue
        if any(one.text[0].isalnum() and not right.gap for one, right in _sides(units, number)):
            continue  # a part of a word
        beside = [*units[max(0, number - 2) : number], *units[number + 1 : number + 3]]
        longer = any(
            one.source == unit.source and len(one.text) >= _LONGER * len(unit.text)
            for one in beside
        )
        if longer or not any(map(str.isalnum, source[slice(*unit.source)])):
            unit.leaf = None


def _sides(units: Sequence[Unit], number: int) -> list[tuple[Unit, Unit]]:
    """Return the units before and after a unit, each with the right one of the two."""
    before = [(units[number - 1], units[number])] if number else []
    return before + [(one, one) for one in units[number + 1 : number + 2]]


def _leaf(start: int, end: int, starts: Sequence[int], leaves: Sequence[int]) -> int:
    """Return the leaf with most of a source range."""
    number = max(0, bisect_right(starts, start) - 1)
    best, most = leaves[number], 0
    while number < len(starts) and starts[number] < end:
        following = starts[number + 1] if number + 1 < len(starts) else end
        overlap = min(end, following) - max(start, starts[number])
        if overlap > most:
            best, most = leaves[number], overlap
        number += 1
    return best


def spread(units: Sequence[Unit], places: Sequence[int]) -> Alignment:
    """Align units with these places of the source by their place in the translation."""
    share = len(places) / max(1, units[-1].end if units else 1)
    links = []
    for unit in units if places else ():
        start = int(share * unit.start)
        end = max(start + 1, round(share * unit.end))
        links.append(Link((places[start], places[end - 1] + 1), (unit.start, unit.end)))
    return tuple(links)
