"""Words for generated documents, and translators that show what happened to each text."""

import os
import re
from dataclasses import replace
from random import Random

from outrider.documents.marked import MarkedText

DOCUMENTS = int(os.environ.get("OUTRIDER_GENERATED_DOCUMENTS", "1000"))
"""Documents per format: 10,000 before a release."""

WORDS = """
the station Where we cardboard und Straße naïve façade año он привет мир שלום עולם مرحبا العالم
नमस्ते ไทย 안녕하세요 你好 世界。 请问最近的地铁站在哪里？ 3 1984 3.14 50% x2 A&B <3 a<b "so" it's
don't e.g. 👍 👨‍👩‍👧 🏳️‍🌈 é Mr. end. Why? yes! well... hm… semi; colon: (aside) co-op — U.S.
""".split()  # noqa: SIM905


def sentence(random: Random, longest: int = 8) -> str:
    """Return some words; each text has a word of its own."""
    words = random.choices(WORDS, k=random.randint(1, longest))
    words.insert(random.randrange(len(words) + 1), f"unique{random.getrandbits(40)}word")
    return " ".join(words)


def marking(source: MarkedText) -> MarkedText:
    """Translate by writing `ʹ` after each word; words in kept spans stay."""
    kept = [(span.start, span.end) for span in source.spans if span.kept]
    parts, places, end = [], {}, 0
    size = 0
    for match in re.finditer(r"[^\W\d_]+", source.text):
        parts.append(source.text[end : match.start()])
        places |= {at: size + at - end for at in range(end, match.start() + 1)}
        size += match.start() - end
        word = match[0]
        inside = any(start < match.end() and match.start() < stop for start, stop in kept)
        within = any(
            match.start() < at < match.end() for s in source.spans for at in (s.start, s.end)
        )
        new = word if inside or within else word + "ʹ"
        places |= {match.start() + at: size + at for at in range(len(word))}
        parts.append(new)
        size += len(new)
        end = match.end()
        places[end] = size
    places |= {at: size + at - end for at in range(end, len(source.text) + 1)}
    parts.append(source.text[end:])
    moved = (replace(s, start=places[s.start], end=places[s.end]) for s in source.spans)
    return MarkedText("".join(parts), tuple(moved))


def mirroring(source: MarkedText) -> MarkedText:
    """Translate by reversing the characters; kept spans are copied."""
    size = len(source.text)
    text = list(source.text[::-1])
    spans = []
    for span in source.spans:
        start, end = size - span.end, size - span.start
        if span.kept:
            text[start:end] = source.text[span.start : span.end]
        spans.append(replace(span, start=start, end=end))
    points = [span for span in spans if span.start == span.end][::-1]
    ranges = [span for span in spans if span.start < span.end]
    spans = sorted([*ranges, *points], key=lambda span: (span.start, -span.end))
    return MarkedText("".join(text), tuple(spans))


def marks(text: str) -> int:
    """Count the words that `marking` translated."""
    return text.count("ʹ")
