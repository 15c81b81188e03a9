"""Translators that mark their input, with the alignment of what they do."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.text.alignment import Alignment, Link

_WORD = re.compile(r"[^\W\d_]+|\d+|\S")


@dataclass(frozen=True)
class Pseudo:
    """A translation."""

    text: str
    alignment: Alignment | None


def upper(texts: Sequence[str]) -> list[Pseudo]:
    """Translate to capitals, in the same order."""
    return [_joined(text, [m.span() for m in _WORD.finditer(text)], str.upper) for text in texts]


def turned(texts: Sequence[str]) -> list[Pseudo]:
    """Translate to capitals, with the words of each sentence in reverse order."""
    found = []
    for text in texts:
        words = [match.span() for match in re.finditer(r"\S+", text)]
        found.append(_joined(text, words[::-1], str.upper, " "))
    return found


def careless(texts: Sequence[str]) -> list[Pseudo]:
    """Lose, double and change words, with links that are partly wrong."""
    found = []
    for text in texts:
        dice = random.Random(text)
        words = [match.span() for match in _WORD.finditer(text) if dice.random() < 0.8]
        dice.shuffle(words)
        words += dice.sample(words, len(words) // 8)
        changed = _joined(text, words, lambda word: word.lower()[:6], " ")
        links = [link for link in changed.alignment or () if dice.random() < 0.8]
        found.append(Pseudo(changed.text, tuple(links) if dice.random() < 0.9 else None))
    return found


def _joined(
    text: str,
    words: list[tuple[int, int]],
    change: Callable[[str], str],
    between: str | None = None,
) -> Pseudo:
    parts: list[str] = []
    links = []
    length = end = 0
    for start, stop in words:
        gap = text[end:start] if between is None else between if parts else ""
        word = change(text[start:stop])
        parts += [gap, word]
        length += len(gap)
        links.append(Link((start, stop), (length, length + len(word))))
        length += len(word)
        end = stop
    return Pseudo("".join(parts) + ("" if between else text[end:]), tuple(links))
