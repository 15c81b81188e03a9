"""The tree of the spans of a text."""

from collections.abc import Sequence
from itertools import accumulate

from outrider.documents.marked import MarkedText
from outrider.text.alignment import Range


class Nesting:
    """Which span is inside which; -1 is the whole text.

    What is inside a kept span is a part of it: it has no place of its own in a translation.
    """

    def __init__(self, marked: MarkedText) -> None:
        self.source, self.spans = marked.text, marked.spans
        self.children: dict[int, list[int]] = {}
        """Spans inside each span, without those inside kept ones."""
        self.kept: dict[int, str] = {}
        """Texts of the kept spans that are not inside another."""
        self.starts, self.leaves = [0], [-1]
        """Where the innermost span changes, and to which."""
        self._parents: list[int] = []
        self._last = [*range(len(self.spans))]
        self._read()
        self._visible = [0, *accumulate(not character.isspace() for character in self.source)]

    def _read(self) -> None:
        around = [-1]
        owner = end = -1
        """The kept span that the next spans may be inside of, and its end."""
        for number, span in enumerate((*self.spans, None)):
            place = len(self.source) if span is None else span.start
            while around[-1] >= 0 and self.spans[around[-1]].end <= place:
                self.starts.append(self.spans[around.pop()].end)
                self.leaves.append(around[-1] if self.starts[-1] >= end else owner)
            if span is None:
                break
            inside = span.start < end
            if not inside:
                self.children.setdefault(around[-1], []).append(number)
            self._parents.append(around[-1])
            if span.start == span.end:
                continue
            around.append(number)
            if span.kept and not inside:
                owner, end = number, span.end
                self.kept[number] = self.source[span.start : span.end]
            self.starts.append(span.start)
            self.leaves.append(owner if inside else number)
        for number in reversed(range(len(self.spans))):
            if (parent := self._parents[number]) >= 0:
                self._last[parent] = max(self._last[parent], self._last[number])

    def range(self, number: int) -> Range:
        """Return the place of a span in the source."""
        if number < 0:
            return 0, len(self.source)
        return self.spans[number].start, self.spans[number].end

    def parent(self, number: int) -> int:
        """Return the span around a span."""
        return self._parents[number]

    def inside(self, number: int) -> Sequence[int]:
        """Return all spans inside a span, at any depth."""
        return range(number + 1, (self._last[number] if number >= 0 else len(self.spans) - 1) + 1)

    def translated(self) -> list[int]:
        """Return the places of the source outside of kept spans."""
        inside = {place for number in self.kept for place in range(*self.range(number))}
        return [place for place in range(len(self.source)) if place not in inside]

    def visible(self, start: int, end: int) -> bool:
        """Whether a range of the source has characters other than white space."""
        return self._visible[end] > self._visible[start]
