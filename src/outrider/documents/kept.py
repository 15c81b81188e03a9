"""Kept parts in a translation: copies of them, and their text in the place of other words."""

from outrider.documents.nesting import Nesting
from outrider.documents.placing import best_runs
from outrider.documents.units import Unit, inside_word
from outrider.text.alignment import Range


def find_copies(translation: str, tree: Nesting) -> list[Range]:
    """Return where the kept texts occur in the translation; longer texts come first."""
    texts = set(tree.kept.values())
    within = {
        text for number, text in tree.kept.items() if inside_word(tree.source, *tree.range(number))
    }
    free = bytearray(b"\1") * len(translation)
    found = []
    for text in sorted(texts, key=lambda text: (-len(text), text)):
        start = translation.find(text)
        while start >= 0:
            end = start + len(text)
            whole = text in within or not inside_word(translation, start, end)
            if whole and all(free[start:end]):
                free[start:end] = bytes(len(text))
                found.append((start, end))
            else:
                end = start + 1
            start = translation.find(text, end)
    return sorted(found)


class Keeper:
    """Gives each kept span a unit with its text, if words are linked with it."""

    def __init__(self, tree: Nesting, units: list[Unit]) -> None:
        self._tree, self._units = tree, units

    def keep(self, *, replacing: bool) -> None:
        """Choose copies, replace linked words if `replacing`, and mark what is left out."""
        tree = self._tree
        spans: dict[str, list[int]] = {}
        copies: dict[str, list[Unit]] = {}
        for number, text in tree.kept.items():
            spans.setdefault(text, []).append(number)
        for unit in self._units:
            if unit.text in spans:
                copies.setdefault(unit.text, []).append(unit)
        missing = {
            number
            for text, numbers in spans.items()
            for number in self._assign(numbers, copies.get(text, []))
        }
        runs = best_runs(
            self._units,
            0,
            len(self._units),
            lambda unit: unit.leaf if unit.leaf in missing else None,
        )
        for number, (first, last) in runs.items() if replacing else ():
            self._replace(number, first, last)
        for unit in self._units:
            if not unit.kept and unit.leaf is not None and unit.leaf >= 0:
                unit.leaf = tree.parent(unit.leaf) if unit.leaf in tree.kept else unit.leaf
            if unit.dropped:
                unit.leaf = unit.source = None

    def _assign(self, numbers: list[int], copies: list[Unit]) -> set[int]:
        """Assign copies of a text to its spans in order; return the spans without a copy.

        Copies are left over if the text is also outside of kept spans; more are dropped.
        """
        own, text = set(numbers), self._tree.kept[numbers[0]]
        chosen = sorted(copies, key=lambda unit: unit.leaf not in own)[: len(numbers)]
        taken = {unit.start for unit in chosen}
        spare = self._tree.source.count(text) - len(numbers)
        for unit in copies:
            if unit.start not in taken:
                unit.dropped, spare = spare <= 0, spare - 1
        given = {unit.leaf for unit in chosen if unit.leaf in own}
        given |= set(
            [number for number in numbers if number not in given][: len(chosen) - len(given)]
        )
        chosen.sort(key=lambda unit: unit.start)
        for unit, number in zip(chosen, sorted(given), strict=True):
            self._claim(unit, number)
        return own - given

    def _replace(self, number: int, first: int, last: int) -> None:
        """Put the text of a kept span in the place of units, and of remains of it around them."""
        text, units = self._tree.kept[number], self._units
        while first > 0 and _remains(units[first - 1], units[first].gap, text):
            first -= 1
        while last < len(units) and _remains(units[last], units[last].gap, text):
            last += 1
        for unit in units[first:last]:
            unit.dropped = True
        units[first].dropped = False
        units[first].text = text
        self._claim(units[first], number)

    def _claim(self, unit: Unit, number: int) -> None:
        unit.leaf, unit.kept, unit.source = number, True, self._tree.range(number)


def _remains(unit: Unit, gap: str, text: str) -> bool:
    """Whether a unit beside the translation of a kept text is a sign from that text."""
    return not gap and not unit.kept and not unit.text.isalnum() and unit.text in text
