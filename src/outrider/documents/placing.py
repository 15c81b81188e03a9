"""Places of spans in a translation: the ranges of units that fit them best."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence

from outrider.documents.nesting import Nesting
from outrider.documents.units import Unit
from outrider.text.alignment import Range

_KEPT_VOTES = 4
"""Votes of a kept part for the range of the spans around it; a word has one."""
_TRIES = 16
"""Linked words that are examined on each side of a point."""

_Label = Callable[[Unit], int | None]


def best_runs(units: Sequence[Unit], first: int, last: int, label: _Label) -> dict[int, Range]:
    """Return the range of units that fits each label best.

    A range begins and ends with units of its label and has none of another.
    """
    best: dict[int, tuple[int, int, int]] = {}
    current, start, score = None, 0, 0
    for number in range(first, last):
        unit = units[number]
        if unit.leaf is None or unit.dropped:
            continue
        found = label(unit)
        if found is None:
            score -= 1
            continue
        if found != current or score < 0:
            current, start, score = found, number, 0
        score += _KEPT_VOTES if unit.kept else 1
        if score >= best.get(found, (0, 0, 0))[0]:
            best[found] = score, start, number + 1
    return {found: (start, end) for found, (_, start, end) in best.items()}


class Placer:
    """Finds the units of each span."""

    def __init__(self, tree: Nesting, units: list[Unit]) -> None:
        self._tree, self._units = tree, units
        linked = [(unit.source, n) for n, unit in enumerate(units) if unit.source is not None]
        self._by_start = sorted((source[0], number) for source, number in linked)
        self._by_end = sorted((source[1], number) for source, number in linked)
        self.places: dict[int, Range] = {-1: (0, len(units))}
        """Units of each span; an empty range is a place between units."""
        self.inserted: set[int] = set()
        """Kept spans whose text is inserted at their place."""
        self._copies = {unit.leaf: unit for unit in units if unit.kept}

    def place_inside(self, parent: int) -> None:
        """Give each span inside `parent` its range, apart from each other."""
        tree, children, (first, last) = self._tree, self._tree.children[parent], self.places[parent]
        inside, (start, end) = tree.inside(parent), tree.range(parent)

        def label(unit: Unit) -> int | None:
            if unit.leaf is None or unit.leaf not in inside:
                return None
            return children[bisect_right(children, unit.leaf) - 1]

        runs = best_runs(self._units, first, last, label)
        self._extend(runs, first, last, label)
        taken = sorted(runs.values())
        before = first
        for number in children:
            low, high = tree.range(number)
            spans_text = low < high and number not in tree.kept
            if spans_text and not (tree.visible(start, low) or tree.visible(high, end)):
                runs[number] = first, last
            if number in runs:
                continue
            place = self._between((low, high), (start, end), (first, last))
            run = None
            if spans_text:
                run = self._word_around((low + high) // 2, taken, first, last)
                if run is None and number in tree.children:
                    run = self._word_beside(place, taken, first, last)
            if run is not None:
                runs[number] = run
                insort(taken, run)
                continue
            before = _outside(max(before, place), before, taken)
            runs[number] = before, before
            if number in tree.kept:
                self.inserted.add(number)
                if number in self._copies:
                    self._copies[number].dropped = True
        self.places |= runs

    def _extend(self, runs: dict[int, Range], first: int, last: int, label: _Label) -> None:
        """Extend ranges over words between them that were apart from the other words."""
        order = sorted(runs, key=lambda number: runs[number])
        for place, number in enumerate(order):
            start, end = runs[number]
            last_here = runs[order[place + 1]][0] if place + 1 < len(order) else last
            start -= self._gain(range(start - 1, first - 1, -1), number, label)
            end += self._gain(range(end, last_here), number, label)
            runs[number], first = (start, end), end

    def _gain(self, numbers: Sequence[int], wanted: int, label: _Label) -> int:
        best = score = added = 0
        for count, number in enumerate(numbers, 1):
            unit = self._units[number]
            if unit.leaf is None or unit.dropped:
                continue
            if label(unit) != wanted:
                if unit.kept:
                    break
                score -= 1
                continue
            score += _KEPT_VOTES if unit.kept else 1
            if score >= best:
                best, added = score, count
        return added

    def _word_around(self, place: int, taken: list[Range], first: int, last: int) -> Range | None:
        """Return the free word that is linked with the source word around a place."""
        at = bisect_right(self._by_start, (place, len(self._units))) - 1
        number = self._by_start[at][1] if at >= 0 else -1
        source = self._units[number].source if first <= number < last else None
        around = source is not None and place < source[1]
        return self._word_beside(number, taken, number, number + 1) if around else None

    def _word_beside(self, place: int, taken: list[Range], first: int, last: int) -> Range | None:
        """Return a free word after or before a place."""
        for number in (place, place - 1):
            free = not any(start <= number < end for start, end in _near(taken, number))
            if first <= number < last and free and not self._units[number].kept:
                return number, number + 1
        return None

    def _between(self, source: Range, around: Range, units: Range) -> int:
        """Return the place between two units for a point of the source."""
        (start, end), (first, last) = around, units
        if not self._tree.visible(start, source[0]):
            return first
        if not self._tree.visible(source[1], end):
            return last
        at = bisect_left(self._by_start, (source[1], -1))
        following = [number for _, number in self._by_start[at : at + _TRIES]]
        after = next((number for number in following if first <= number < last), None)
        at = bisect_right(self._by_end, (source[0], len(self._units)))
        previous = [number for _, number in reversed(self._by_end[max(0, at - _TRIES) : at])]
        before = next((number + 1 for number in previous if first <= number < last), None)
        found = [place for place in (after, before) if place is not None]
        if not found:  # inside the source of a word
            at = bisect_right(self._by_start, (source[0], len(self._units))) - 1
            found = [self._by_start[at][1] + 1] if at >= 0 else [first]
            found = [min(max(first, found[0]), last)]
        return max(found, key=lambda place: self._fits(place, source))

    def _fits(self, place: int, source: Range) -> int:
        """Count the units beside a place that are on their side of a point of the source."""
        left = self._units[place - 1].source if place else None
        right = self._units[place].source if place < len(self._units) else None
        return (left is None or left[0] < source[0]) + (right is None or right[0] >= source[1])


def _near(taken: list[Range], number: int) -> list[Range]:
    at = bisect_right(taken, (number, number + 1))
    return taken[max(0, at - 1) : at + 1]


def _outside(place: int, least: int, taken: list[Range]) -> int:
    """Move a place to the nearer end of the taken range that it is in."""
    for start, end in _near(taken, place):
        if start < place < end:
            return start if least <= start and place - start < end - place else end
    return place
