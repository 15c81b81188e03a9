"""Texts of a request with their mark-up."""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.documents.html import Page
from outrider.documents.html_elements import Rules
from outrider.documents.marked import MarkedText
from outrider.documents.translate import Prepared
from outrider.runtime import Result


@dataclass(frozen=True)
class Source:
    """A text of a request."""

    page: Page | None
    """None for plain text."""
    prepared: list[Prepared]


def read_sources(texts: Sequence[str], html: bool | Rules) -> list[Source]:
    """Read texts: plain, or HTML or XML with these rules."""
    if html is False:
        return [Source(None, [_prepare(text)]) for text in texts]
    rules = html if isinstance(html, Rules) else None
    pages = [Page(text, rules) for text in texts]
    return [Source(page, [Prepared(marked) for marked in page.texts]) for page in pages]


def _prepare(text: str) -> Prepared:
    """Read a plain text; without marks, the model also gets one without words."""
    prepared = Prepared(MarkedText(text))
    if not prepared.needs_alignment:
        prepared.text = text
    return prepared


def write_sources(
    sources: Sequence[Source], results: Sequence[Sequence[Result]], ranks: int
) -> list[list[str]]:
    """Return this number of translations of each text, best first.

    There are results for each prepared text.
    """
    left = iter(results)
    texts = []
    for source in sources:
        found = [next(left) for _ in source.prepared]
        several = []
        for rank in range(ranks):
            marked = [
                one.finish(each[min(rank, len(each) - 1)]) if one.text else one.marked
                for one, each in zip(source.prepared, found, strict=True)
            ]
            page = source.page
            several.append(marked[0].text if page is None else page.write_text(marked))
        texts.append(several)
    return texts
