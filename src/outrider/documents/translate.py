"""Translation of marked texts: the model gets whole sentences without mark-up.

Kept parts have stand-ins there (`XML1`), which models copy; tags in the text and emoji are left
out. All of them return by alignment.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple, Protocol

from outrider.documents.html_scanner import VOID
from outrider.documents.marked import MarkedText, Span
from outrider.documents.nesting import Nesting
from outrider.documents.plain import EMOJI, INTEGER, TAG, mark_kept
from outrider.documents.tags import Kept, Tag, mark_up, write_marks
from outrider.documents.transfer import transfer
from outrider.text.alignment import Alignment

_NAMES, _INTEGERS = ("XML", "PDF", "PX", "QX"), ("700", "810", "930", "640")
"""Stand-ins begin with the first of these that the text does not have, and end with a number."""


class Translated(Protocol):
    """A translation of a text, such as `outrider.runtime.Result`."""

    @property
    def text(self) -> str:
        """The translation."""
        ...

    @property
    def alignment(self) -> Alignment | None:
        """Links with the source; None counts as no links."""
        ...


def translate_marked(
    texts: Sequence[MarkedText],
    translate: Callable[[list[str]], Sequence[Translated]],
    aligned: Callable[[list[str]], Sequence[Translated]] | None = None,
) -> list[MarkedText]:
    """Translate texts with their mark-up.

    Args:
        texts: The texts.
        translate: Translates texts without mark-up. Texts without words are not sent.
        aligned: Translates with alignments, which some of the texts need; by default `translate`.
    """
    prepared = [Prepared(text) for text in texts]
    sent = [one for one in prepared if one.text]
    if aligned is not None and any(one.needs_alignment for one in sent):
        translate = aligned
    results = translate([one.text for one in sent]) if sent else []
    finished = iter([one.finish(each) for one, each in zip(sent, results, strict=True)])
    return [next(finished) if one.text else one.marked for one in prepared]


class _Cut(NamedTuple):
    """A kept part, and what is in its place in the model's text."""

    start: int
    end: int
    number: int
    stand_in: str
    """Empty for a part that is left out."""


class _LeftOut(Span):
    """A tag or emoji of the text."""


class Prepared:
    """A marked text, and its text for the model."""

    def __init__(self, marked: MarkedText) -> None:
        self.marked = marked
        self.text = marked.text
        """Without mark-up, kept parts and emoji; empty if only these have words."""
        self.needs_alignment = False
        """Whether the mark-up has places that an alignment decides."""
        self._kept = mark_kept(marked)
        if self._kept.spans:
            self._prepare()

    def _prepare(self) -> None:
        self._tree = Nesting(self._kept)
        others = any(not span.kept for span in self._kept.spans)
        self._cuts = list(self._find_cuts(self._left_out(pairs=not others)))
        self._numbers = {cut.stand_in: cut.number for cut in self._cuts if cut.stand_in}
        self._clean = self._with_points() if others else self._with_tags()
        self.text = self._clean.text if self._has_words() else ""
        self.needs_alignment = bool(self._clean.spans)

    def finish(self, translated: Translated) -> MarkedText:
        """Return the translation with the mark-up of the text."""
        if not self.needs_alignment:
            return MarkedText(translated.text)
        placed = transfer(self._clean, translated.text, translated.alignment or ())
        return write_marks(self._with_originals(placed), lambda span: isinstance(span, _LeftOut))

    def _has_words(self) -> bool:
        text, end = self._kept.text, 0
        for cut in self._cuts:
            if any(map(str.isalpha, text[end : cut.start])):
                return True
            end = cut.end
        return any(map(str.isalpha, text[end:]))

    def _left_out(self, *, pairs: bool) -> set[int]:
        """Return the kept parts that are left out: emoji, and tags if `pairs`.

        A tag without its pair is a word (`the <b> element`), and has a stand-in.
        """
        found: set[int] = set()
        tags: list[Tag] = []
        numbers: list[int] = []
        for number, text in self._tree.kept.items():
            if self._kept.spans[number].open or len(self._tree.inside(number)):
                continue
            if EMOJI.fullmatch(text):
                found.add(number)
            elif pairs and (tag := _tag(text)) is not None:
                tags.append(tag)
                numbers.append(number)
        opened, closed = ({tag.name for tag in tags if tag.closes is end} for end in (False, True))
        paired = opened & closed | {""}
        return found | {n for n, tag in zip(numbers, tags, strict=True) if tag.name in paired}

    def _find_cuts(self, left_out: set[int]) -> Iterator[_Cut]:
        text = self._kept.text
        name, integer = (
            next((one for one in several if one not in text), several[0])
            for several in (_NAMES, _INTEGERS)
        )
        end = count = 0
        for number, kept in self._tree.kept.items():
            start, before = self._tree.range(number)[0], end
            end = start + len(kept)
            if number in left_out:
                spaced = start > before and text[start - 1].isspace()
                if spaced and (EMOJI.fullmatch(kept) or text[end : end + 1].isspace()):
                    start -= 1
                elif start == 0 and text[end : end + 1] == " ":
                    end += 1
                yield _Cut(start, end, number, "")
            else:
                count += 1
                first = integer if INTEGER.fullmatch(kept) else name
                yield _Cut(start, end, number, f"{first}{count}")

    def _with_tags(self) -> MarkedText:
        """Return the text with pairs of tags as spans."""
        text, end = self._kept.text, 0
        pieces: list[str | Tag | Kept] = []
        for cut in self._cuts:
            pieces.append(text[end : cut.start])
            end = cut.end
            raw = text[cut.start : end]
            span = self._kept.spans[cut.number]
            if cut.stand_in:
                pieces.append(Kept(cut.stand_in, span.open, span.close))
                continue
            tag = _tag(raw.strip())
            pieces.append(Tag(raw) if tag is None else replace(tag, raw=raw))
            if tag is not None and not tag.name:
                apart = text[cut.start - 1 : cut.start].isalnum() and text[end : end + 1].isalnum()
                pieces.append(" " if apart else "")
        marked, _ = mark_up([*pieces, text[end:]])
        return MarkedText(
            marked.text,
            tuple(span if span.kept else _LeftOut(*_fields(span)) for span in marked.spans),
        )

    def _with_points(self) -> MarkedText:
        """Return the text with each emoji as a point, beside the other spans."""
        numbers = {cut.number: cut for cut in self._cuts}
        text, move = _replace(self._kept.text, self._cuts)
        spans: list[Span] = []
        inside: Sequence[int] = ()
        for number, span in enumerate(self._kept.spans):
            if number in inside:
                continue
            cut = numbers.get(number)
            if cut is None:
                spans.append(replace(span, start=move(span.start), end=move(span.end)))
                continue
            inside = self._tree.inside(number)
            start = move(cut.start)
            end = start + len(cut.stand_in)
            if cut.stand_in:
                spans.append(replace(span, start=start, end=end))
            else:
                spans.append(_LeftOut(start, end, self._kept.text[cut.start : cut.end]))
        return MarkedText(text, tuple(spans))

    def _with_originals(self, placed: MarkedText) -> MarkedText:
        """Put kept parts, and the spans inside them, in the place of their stand-ins."""
        cuts: list[_Cut] = []
        for span in placed.spans:
            if span.kept:
                number = self._numbers[placed.text[span.start : span.end]]
                cuts.append(_Cut(span.start, span.end, number, self._tree.kept[number]))
        text, move = _replace(placed.text, cuts)
        spans: list[Span] = []
        for span in placed.spans:
            spans.append(replace(span, start=move(span.start), end=move(span.end)))
            if span.kept:
                number = self._numbers[placed.text[span.start : span.end]]
                shift = spans[-1].start - self._kept.spans[number].start
                spans += [
                    replace(one, start=one.start + shift, end=one.end + shift)
                    for one in (self._kept.spans[inner] for inner in self._tree.inside(number))
                ]
        return MarkedText(text, tuple(spans))


def _replace(text: str, cuts: Sequence[_Cut]) -> tuple[str, Callable[[int], int]]:
    """Put stand-ins into a text; return it, and a function from old to new places."""
    ends = [cut.end for cut in cuts]
    shifts = [0, *accumulate(len(cut.stand_in) - (cut.end - cut.start) for cut in cuts)]

    def move(place: int) -> int:
        number = bisect_right(ends, place)
        inside = number < len(cuts) and cuts[number].start < place
        return (cuts[number].start if inside else place) + shifts[number]

    parts = [
        part
        for end, cut in zip([0, *ends], cuts, strict=False)
        for part in (text[end : cut.start], cut.stand_in)
    ]
    return "".join([*parts, text[ends[-1] if ends else 0 :]]), move


def _tag(text: str) -> Tag | None:
    """Return a tag of a text; one without content has no name."""
    found = TAG.fullmatch(text)
    if found is None:
        return None
    empty = found["empty"] or (found["name"] or "br").lower() in VOID
    return Tag(text, "" if empty else found["name"], bool(found["end"]))


def _fields(span: Span) -> tuple[int, int, str, str, bool]:
    return span.start, span.end, span.open, span.close, span.kept
