"""Parts of a paragraph, as the formats list them, and the containers that they form."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "point", "kept", "open", "close", "break", "drop"]


@dataclass(frozen=True, slots=True)
class Run:
    """An element around texts of one formatting."""

    start: int
    end: int
    head: str
    """The start tag and the formatting."""
    tail: str


@dataclass(slots=True)
class Part:
    """A part of a paragraph, and its bytes."""

    kind: Kind
    """`text`; `point`: mark-up without text; `kept`: mark-up with text that is not translated;
    `open` and `close`: the tags of a container; `break`: mark-up that divides the paragraph;
    `drop`: mark-up that a changed text does not have."""
    start: int
    end: int
    text: str = ""
    style: str = ""
    """The formatting of a text, as the format writes it."""
    run: Run | None = None
    last_run: Run | None = None
    """The run at the end, if a part begins in one run and ends in another."""
    pair: object = None
    """Equal for two points that begin and end something: they become a container if possible."""
    fallback: Kind = "point"
    """The kind if they do not."""
    wraps: bool = False
    """Whether this break does not divide a sentence that continues after it."""


def join_lines(parts: Sequence[Part]) -> None:
    """Turn line breaks inside a sentence into points."""
    after = ""
    for part in reversed(parts):
        if part.kind == "break":
            part.wraps, after = part.wraps and after.islower(), ""
        elif part.kind == "text":
            after = part.text.lstrip()[:1] or after
    before = ""
    for part in parts:
        if part.kind == "break":
            if part.wraps and before and before not in ".!?:;…":
                part.kind = "point"
            before = ""
        elif part.kind == "text":
            before = part.text.rstrip()[-1:] or before


def pair(parts: Sequence[Part]) -> dict[int, int]:
    """Return the closing part of each opening one; a pair that crosses another is divided."""
    partners: dict[int, int] = {}
    around: list[int] = []
    places: dict[object, int] = {}
    for i, part in enumerate(parts):
        if part.kind == "open":
            around.append(i)
            if part.pair is not None:
                places[part.pair] = i
        if part.kind != "close":
            continue
        while around and (  # not a container any more, or not closed in this one
            parts[around[-1]].kind != "open"
            or (part.pair is None and parts[around[-1]].pair is not None)
        ):
            first = parts[around.pop()]
            first.kind = first.fallback if first.kind == "open" else first.kind
        place = around[-1] if part.pair is None else places.pop(part.pair, -1)
        if around and around[-1] == place:
            partners[around.pop()] = i
            continue
        part.kind = part.fallback
        if place >= 0 and parts[place].kind == "open":
            parts[place].kind = parts[place].fallback
    for i in around:
        if parts[i].kind == "open":
            parts[i].kind = parts[i].fallback
    return partners
