"""Transfer of mark-up from a text to its translation, by their alignment."""

from dataclasses import replace

from outrider.documents.kept import Keeper, find_copies
from outrider.documents.marked import MarkedText, Span
from outrider.documents.nesting import Nesting
from outrider.documents.placing import Placer
from outrider.documents.units import Unit, divide, link, loosen, spread
from outrider.text.alignment import Alignment


def transfer(marked: MarkedText, translation: str, alignment: Alignment) -> MarkedText:
    """Place the spans of a text in its translation.

    Every span appears once, inside the span that it was inside of. A span covers the range of the
    translation with most of the words linked with its source; spans side by side stay apart, and
    points, and spans without a word, keep their order. A point at the end of a span is outside of
    it; if a point inside gets there, the closing mark-up becomes a point behind it. The text of a
    kept span appears as often as in the source: a copy by the model is used, otherwise the linked
    words are replaced, or the text is inserted.

    Takes linear time for each level of nesting.

    Args:
        marked: The source text.
        translation: Its translation.
        alignment: Links between them; without links, places are proportional.
    """
    if not marked.spans:
        return MarkedText(translation)
    tree = Nesting(marked)
    units, tail = divide(translation, find_copies(translation, tree))
    link(units, alignment or spread(units, tree.translated()), tree.starts, tree.leaves)
    if alignment:
        loosen(units, marked.text)
    Keeper(tree, units).keep(replacing=bool(alignment))
    placer = Placer(tree, units)
    for parent in sorted(tree.children):
        placer.place_inside(parent)
    return _Writer(tree, units, placer).write(tail)


class _Writer:
    """Writes the translation with its spans."""

    def __init__(self, tree: Nesting, units: list[Unit], placer: Placer) -> None:
        self._tree, self._units = tree, units
        self._places, self._inserted = placer.places, placer.inserted
        self._parts: list[str] = []
        self._length = self._next = 0
        """Characters and units that are written."""
        self._gap_written = -1
        """The unit whose white space is written."""
        self._needs_space = self._ends_with_space = False
        self._spans: list[Span] = []

    def write(self, tail: str) -> MarkedText:
        stack, opened = [(-1, False)], {-1: -1}
        while stack:
            number, closing = stack.pop()
            first, last = self._places[number]
            if closing:
                self._write_units(last)
                self._close(opened[number])
                continue
            if number >= 0:
                stack.append((number, True))
                self._write_units(first)
                opened[number] = len(self._spans)
                self._open(number)
            stack += [(child, False) for child in reversed(self._in_order(number))]
        self._write_units(len(self._units))
        return MarkedText("".join([*self._parts, tail]), tuple(self._spans))

    def _in_order(self, number: int) -> list[int]:
        """Return the spans inside a span in the order of the translation."""
        places = self._places

        def key(child: int) -> tuple[int, bool, int]:
            first, last = places[child]
            return first, first < last, child

        return sorted(self._tree.children.get(number, ()), key=key)

    def _open(self, number: int) -> None:
        span, source, (first, last) = (
            self._tree.spans[number],
            self._tree.source,
            self._places[number],
        )
        text = ""
        if number in self._inserted:
            text = self._tree.kept[number]
            if self._length and not self._ends_with_space and source[: span.start][-1:].isspace():
                self._write(" ")
        elif first < last or not source[span.end : span.end + 1].isspace():
            self._write_gap()
        shift = self._length - span.start
        self._spans.append(replace(span, start=self._length, end=self._length))
        if number in self._tree.kept:
            inside = (self._tree.spans[child] for child in self._tree.inside(number))
            self._spans += [
                replace(one, start=one.start + shift, end=one.end + shift) for one in inside
            ]
        if text:
            self._write(text)
            self._gap_written = -1
            self._needs_space = source[span.end : span.end + 1].isspace()

    def _close(self, number: int) -> None:
        span = replace(self._spans[number], end=self._length)
        if len(self._spans) > number + 1 and self._spans[-1].start == self._length and span.close:
            # The place of a point does not show that it is inside.
            self._spans.append(replace(span, start=self._length, open=span.close, close=""))
            span = replace(span, close="")
        self._spans[number] = span

    def _write(self, text: str) -> None:
        if text:
            self._parts.append(text)
            self._length += len(text)
            self._ends_with_space = text[-1].isspace()

    def _write_gap(self) -> None:
        """Write the white space before the next unit, once."""
        number = self._next
        while number < len(self._units) and self._units[number].dropped:
            number += 1
        if number == len(self._units) or number == self._gap_written:
            return
        self._gap_written = number
        unit = self._units[number]
        gap = unit.gap if self._length or not number else ""
        if self._needs_space and not gap and (unit.kept or unit.text.isalnum()):
            gap = " "
        self._needs_space = False
        self._write(gap)

    def _write_units(self, last: int) -> None:
        while self._next < last:
            unit = self._units[self._next]
            if not unit.dropped:
                self._write_gap()
                self._write(unit.text)
            self._next += 1
