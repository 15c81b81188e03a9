"""Alignments: which part of a source text became which part of its translation."""

from bisect import bisect_right
from typing import NamedTuple

Range = tuple[int, int]
"""First character, and the one after the last."""


class Link(NamedTuple):
    """One token of a translation and the source token it is aligned with, as characters."""

    source: Range
    target: Range


Alignment = tuple[Link, ...]
"""One link for each aligned target token, in the order of the target."""


def compose(first: Alignment, second: Alignment) -> Alignment:
    """Align the source of the first translation with the target of the second.

    Each link of the second is connected with the link of the first that it overlaps most.
    """
    links = []
    ends = [link.target[1] for link in first]
    for link in second:
        start, end = link.source
        best, most = None, 0
        for other in first[bisect_right(ends, start) :]:
            if other.target[0] >= end:
                break
            overlap = min(end, other.target[1]) - max(start, other.target[0])
            if overlap > most:
                best, most = other, overlap
        if best is not None:
            links.append(Link(best.source, link.target))
    return tuple(links)
