"""Paragraphs of XML formats as marked texts, and their bytes with other texts.

A format lists the parts of a paragraph. Tabs and most line breaks divide a paragraph into texts;
what stands before, between and after the texts keeps its bytes. A text that changes is written
again from its spans: runs of one formatting, containers such as links, and points such as images.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from outrider.documents.dividing import Mark, Segment, divide, key
from outrider.documents.marked import MarkedText, Span
from outrider.documents.parts import Part
from outrider.documents.xml import Source
from outrider.errors import InputError

Writer = Callable[[str, str], str]
"""Returns the mark-up of a formatting and a text."""


class Paragraphs:
    """A document of one XML file."""

    def __init__(
        self, source: Source, raw: bytes, paragraphs: Sequence[Sequence[Part]], write: Writer
    ) -> None:
        """Take the parts of each paragraph, which are in any order and may be nested."""
        self._source, self._raw, self._write = source, raw, write
        found = [segment for parts in paragraphs for segment in divide(source.content, parts)]
        self._segments = sorted(found, key=lambda segment: (segment.start, -segment.end))
        self._outer: list[Segment] = []
        around: list[Segment] = []
        for segment in self._segments:
            while around and around[-1].end <= segment.start:
                around.pop()
            (around[-1].inner if around else self._outer).append(segment)
            around.append(segment)
        self._texts = [segment.text for segment in self._segments]

    @property
    def texts(self) -> Sequence[MarkedText]:
        """The texts in the order of the file."""
        return self._texts

    def write(self, translations: Sequence[MarkedText]) -> bytes:
        """Return the file with these texts."""
        if len(translations) != len(self._texts):
            raise InputError(
                f"{self._source.name} has {len(self._texts)} texts, "
                f"but {len(translations)} are given"
            )
        if list(translations) == self._texts:
            return self._raw
        new = {
            id(segment): text for segment, text in zip(self._segments, translations, strict=True)
        }
        return self._source.encoded(self._bytes(0, len(self._source.content), self._outer, new))

    def _bytes(
        self, start: int, end: int, segments: Sequence[Segment], new: dict[int, MarkedText]
    ) -> bytes:
        """Return a range of the file with the new texts of these segments."""
        content, out = self._source.content, []
        for segment in segments:
            out.append(content[start : segment.start])
            start = segment.end
            text = new[id(segment)]
            if text == segment.text:
                out.append(self._bytes(segment.start, segment.end, segment.inner, new))
            else:
                out += (
                    segment.before.encode(),
                    self._changed(segment, new),
                    segment.after.encode(),
                )
        return b"".join([*out, content[start:end]])

    def _changed(self, segment: Segment, new: dict[int, MarkedText]) -> bytes:
        """Return a text with other characters, written from its spans."""
        text = new[id(segment)]
        _check(segment, text)
        text = _surrounded(text, segment.lead, segment.trail)
        unused = {kind: iter(marks) for kind, marks in segment.marks.items()}
        out: list[bytes] = []
        styles = [segment.style]
        around: list[tuple[Span, tuple[Mark, ...]]] = []
        pending: list[Mark] = []  # the ends of containers that are two spans
        position, wrapped = 0, False

        def copy(end: int) -> None:
            nonlocal position, wrapped
            characters, position = text.text[position:end], max(position, end)
            if wrapped and characters:
                characters, wrapped = characters.removeprefix(" "), False
            if characters:
                out.append(self._write(styles[-1], characters).encode())

        def put(mark: Mark) -> None:
            nonlocal wrapped
            inner = self._bytes(mark.start, mark.end, _within(segment.inner, mark), new)
            out.extend((mark.head.encode(), inner, mark.tail.encode()))
            wrapped = mark.wraps

        def close(place: int) -> None:
            while around and around[-1][0].end <= place:
                span, marks = around.pop()
                copy(span.end)
                styles.pop()
                if marks:
                    put(marks[-1])

        for span, kind, role in _roles(segment, text):
            if role == "closes":
                close(span.start)
                copy(span.start)
                put(pending.pop())
                continue
            marks = next(unused.get(kind, iter(())), ())
            if not marks and span.open not in segment.styles:  # text that is only kept
                continue
            close(span.start)
            copy(span.start)
            if marks:
                put(marks[0])
            if role == "opens":
                pending.append(marks[-1])
            elif len(marks) == 1:
                position = span.end
            else:
                around.append((span, marks))
                styles.append(styles[-1] if marks else span.open)
        close(len(text.text))
        copy(len(text.text))
        return b"".join(out)


def _roles(segment: Segment, text: MarkedText) -> list[tuple[Span, Span, str]]:
    """Return the spans with their mark-up, and whether they are the whole of it.

    `transfer` writes a container that ends with a point as two spans: the container without its
    closing mark-up, and a point that is the closing mark-up.
    """
    opening = {kind.open for kind in segment.marks if kind.close}
    found: list[tuple[Span, Span, str]] = []
    open_at: list[int] = []
    for span in text.spans:
        if open_at and not span.close and span.start == span.end:
            whole = replace(key(found[open_at[-1]][0]), close=span.open)
            if whole in segment.marks:
                place = open_at.pop()
                found[place] = found[place][0], whole, "opens"
                found.append((span, whole, "closes"))
                continue
        if not span.close and span.open in opening and key(span) not in segment.marks:
            open_at.append(len(found))
        found.append((span, key(span), ""))
    return found


def _surrounded(text: MarkedText, lead: str, trail: str) -> MarkedText:
    moved = (
        replace(span, start=span.start + len(lead), end=span.end + len(lead)) for span in text.spans
    )
    return MarkedText(lead + text.text + trail, tuple(moved))


def _within(segments: list[Segment], mark: Mark) -> list[Segment]:
    first = bisect_left(segments, mark.start, key=lambda segment: segment.start)
    last = bisect_left(segments, mark.end, key=lambda segment: segment.start)
    return segments[first:last]


def _check(segment: Segment, text: MarkedText) -> None:
    """Refuse mark-up that is lost, doubled or crossed."""
    wanted, given = (
        Counter(
            kind
            for span, kind, role in _roles(segment, one)
            if span.open not in segment.styles and (span.open or span.close) and role != "closes"
        )
        for one in (segment.text, text)
    )
    for one in (wanted - given) | (given - wanted):
        problem = "lacks" if wanted[one] > given[one] else "must not have"
        raise InputError(f"the translation of {segment.text.text[:40]!r} {problem} {one.open[:80]}")
    ends = [len(text.text)]
    start = 0
    for span in text.spans:
        while len(ends) > 1 and ends[-1] <= span.start:
            ends.pop()
        if not start <= span.start <= span.end <= ends[-1]:
            raise InputError(f"the translation of {segment.text.text[:40]!r} has crossed mark-up")
        start = span.start
        ends.append(span.end)
