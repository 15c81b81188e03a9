"""Division of the parts of a paragraph into texts.

Tabs and line breaks that do not stand inside a sentence divide a paragraph, and so do containers
with such a break inside. Points and white space at the ends of a text do not belong to it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from outrider.documents.marked import MarkedText, Span
from outrider.documents.parts import Kind, Part, join_lines, pair


@dataclass(frozen=True, slots=True)
class Mark:
    """The bytes of a point, of a kept part, or of one end of a container."""

    head: str
    start: int
    end: int
    tail: str
    wraps: bool


@dataclass(slots=True)
class Segment:
    """A text, and the bytes that are replaced when it changes."""

    start: int
    end: int
    text: MarkedText
    lead: str
    trail: str
    """White space around the text."""
    style: str
    """The formatting of what is in no span of `styles`."""
    styles: frozenset[str]
    """The mark-up of the spans that are only formatting."""
    marks: dict[Span, list[tuple[Mark, ...]]]
    """The mark-up of spans other than formatting, by spans without position: one mark, or the two
    of a container."""
    before: str
    """The end tag of a run that begins before the text."""
    after: str
    """The start of a run that ends after it."""
    inner: list["Segment"] = field(default_factory=list)
    """Texts inside the points, such as the paragraphs of text boxes."""


def key(span: Span) -> Span:
    """Return the mark-up of a span without its position."""
    return Span(0, 0, span.open, span.close, span.kept)


@dataclass(slots=True)
class _Piece:
    """A part, with the bytes of its whole run if no other part is in it."""

    kind: Kind
    text: str
    style: str
    wraps: bool
    start: int
    end: int
    head: str = ""
    """The start of the run, if `start` is inside of it."""
    tail: str = ""
    """The end tag of the run, if `end` is inside of it."""
    before: str = ""
    after: str = ""

    @property
    def is_blank(self) -> bool:
        return self.kind in ("point", "drop") or (self.kind == "text" and not self.text.strip())


def divide(content: bytes, parts: Sequence[Part]) -> Iterator[Segment]:
    """Yield the texts of a paragraph that have a letter."""
    join_lines(parts)
    partners = pair(parts)
    bounds = {i for i, part in enumerate(parts) if part.kind == "break"}
    around: list[int] = []
    for i, part in enumerate(parts):
        if part.kind == "open":
            around.append(i)
        elif part.kind == "close":
            around.pop()
        elif part.kind == "break":
            for j in reversed(around):
                if j in bounds:
                    break
                bounds |= {j, partners[j]}
    pieces, start = _pieces(parts), 0
    for bound in [*sorted(bounds), len(parts)]:
        segment = _segment(content, _trim(_simplify(pieces[start:bound])))
        if segment is not None:
            yield segment
        start = bound + 1


def _pieces(parts: Sequence[Part]) -> list[_Piece]:
    pieces, previous = [], None
    for i, part in enumerate(parts):
        following = parts[i + 1].run if i + 1 < len(parts) else None
        run, last = part.run, part.last_run or part.run
        kind: Kind = "drop" if part.kind == "text" and not part.text else part.kind
        piece = _Piece(kind, part.text, part.style, part.wraps, part.start, part.end)
        if run is not None and run is previous:
            piece.head, piece.before = run.head, run.tail
        elif run is not None:
            piece.start = run.start
        if last is not None and last is following:
            piece.tail, piece.after = last.tail, last.head
        elif last is not None:
            piece.end = last.end
        pieces.append(piece)
        previous = last
    return pieces


def _simplify(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Turn containers without text, and wide blanks, into points, and join points.

    A point at an end of a container is joined with its tag, so that spans state where it stands.
    """
    out: list[_Piece] = []
    opened: list[int] = []
    texts: list[int] = []
    count = 0
    for piece in pieces:
        if piece.kind == "open":
            opened.append(len(out))
            texts.append(count)
        elif piece.kind == "text" and piece.text.strip():
            count += 1
        elif piece.kind == "close" and texts[-1] == count:
            texts.pop()
            inside = out[opened[-1] :]
            del out[opened.pop() :]
            _append(out, _joined([*inside, piece]))
            continue
        elif piece.kind == "close":
            opened.pop()
            texts.pop()
            if out[-1].kind == "point" and not out[-1].wraps:
                piece = replace(_joined([out.pop(), piece]), kind="close")
        joins = piece.kind == "drop" and out and out[-1].kind in ("point", "open")
        if piece.kind == "point" or (joins and not out[-1].wraps):
            _append(out, piece)
        elif piece.kind == "text" and not piece.text.strip() and len(piece.text) > 2:
            _append(out, replace(piece, kind="point"))
        else:
            out.append(piece)
    return out


def _joined(pieces: Sequence[_Piece]) -> _Piece:
    """Return one point, or kept part, for several pieces."""
    first, last = pieces[0], pieces[-1]
    kept = any(piece.kind == "kept" for piece in pieces)
    text = "".join(piece.text for piece in pieces if piece.kind in ("text", "kept"))
    piece = replace(first, kind="kept" if kept else "point", text=text, style="", wraps=False)
    piece.end, piece.tail, piece.after = last.end, last.tail, last.after
    return piece


def _append(out: list[_Piece], piece: _Piece) -> None:
    """Append a point; the space that it stands for becomes a text."""
    blank = bool(piece.text) or piece.wraps
    if piece.kind == "kept":
        out.append(piece)
        return
    piece.text = ""
    if out and out[-1].kind in ("point", "open") and not (piece.wraps or out[-1].wraps):
        out[-1] = replace(_joined([out[-1], piece]), kind=out[-1].kind)
    else:
        out.append(piece)
    if blank:
        out.append(_Piece("text", " ", "", False, piece.end, piece.end))


def _trim(pieces: list[_Piece]) -> list[_Piece]:
    """Remove what stands around the text: points, white space and containers of all of it."""
    partners, around = {}, []
    for i, piece in enumerate(pieces):
        if piece.kind == "open":
            around.append(i)
        elif piece.kind == "close":
            partners[around.pop()] = i
    start, end = 0, len(pieces)
    while True:
        while start < end and pieces[start].is_blank:
            start += 1
        while start < end and pieces[end - 1].is_blank:
            end -= 1
        if partners.get(start) != end - 1:
            break
        start, end = start + 1, end - 1
    if start == end:
        return []
    while start and pieces[start - 1].kind == "drop":
        start -= 1
    while end < len(pieces) and pieces[end].kind == "drop":
        end += 1
    return pieces[start:end]


def _segment(content: bytes, pieces: Sequence[_Piece]) -> Segment | None:
    texts = [piece for piece in pieces if piece.kind == "text"]
    if not any(character.isalpha() for piece in texts for character in piece.text):
        return None
    sizes: dict[str, int] = {}
    for piece in texts:
        if piece.text.strip():
            sizes[piece.style] = sizes.get(piece.style, 0) + len(piece.text.strip())
    style = max(sizes, key=lambda style: sizes[style])
    spans, marks = _spans(content, pieces, style)
    text = "".join(piece.text for piece in pieces if piece.kind in ("text", "kept"))
    first, last = pieces[0], pieces[-1]
    # White space at the end of a container or kept part stays in the text.
    kinds = [piece.kind for piece in pieces if piece.kind != "drop"]
    lead = len(text) - len(text.lstrip()) if kinds[0] == "text" else 0
    trail = len(text.rstrip()) if kinds[-1] == "text" else len(text)
    inside = tuple(
        replace(span, start=max(span.start, lead) - lead, end=min(span.end, trail) - lead)
        for span in spans
    )
    return Segment(
        first.start,
        last.end,
        MarkedText(text[lead:trail], inside),
        text[:lead],
        text[trail:],
        style,
        frozenset(sizes) - {style},
        marks,
        first.before,
        last.after,
    )


def _spans(
    content: bytes, pieces: Sequence[_Piece], base: str
) -> tuple[list[Span], dict[Span, list[tuple[Mark, ...]]]]:
    spans: list[Span] = []
    found: list[tuple[int, tuple[Mark, ...]]] = []
    around: list[int] = []
    styled = -1  # the span that has the formatting of the previous text
    position = 0
    for piece in pieces:
        start, position = position, position + len(piece.text)
        mark = Mark(piece.head, piece.start, piece.end, piece.tail, piece.wraps)
        if piece.kind in ("point", "kept"):
            found.append((len(spans), (mark,)))
            spans.append(Span(start, position, _raw(content, mark), kept=piece.kind == "kept"))
        elif piece.kind == "open":
            around.append(len(found))
            found.append((len(spans), (mark,)))
            spans.append(Span(start, start, _raw(content, mark)))
            styled = -1
        elif piece.kind == "close":
            place, marks = found[around[-1]]
            found[around.pop()] = place, (*marks, mark)
            spans[place] = replace(spans[place], end=start, close=_raw(content, mark))
            styled = -1
        elif piece.text.strip():
            if piece.style == base:
                styled = -1
            elif styled >= 0 and spans[styled].open == piece.style:
                spans[styled] = replace(spans[styled], end=position)
            else:
                styled = len(spans)
                spans.append(Span(start, position, piece.style))
            spans += [
                Span(start + i, start + i + 1, "", kept=True)
                for i, character in enumerate(piece.text)
                if character == "\t"
            ]
    by_key: dict[Span, list[tuple[Mark, ...]]] = {}
    for place, marks in found:
        by_key.setdefault(key(spans[place]), []).append(marks)
    return spans, by_key


def _raw(content: bytes, mark: Mark) -> str:
    return mark.head + content[mark.start : mark.end].decode("utf-8") + mark.tail
