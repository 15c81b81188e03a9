"""A translator that marks its input, and archives, for the tests of documents."""

import io
import os
import zipfile
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import HealthCheck, Phase, settings

from outrider.documents import Document
from outrider.documents.marked import MarkedText

EXAMPLES = int(os.environ.get("OUTRIDER_DOCUMENTS", "300"))
"""Generated documents per format; the full number is 10000."""
GENERATED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    phases=(Phase.generate,),  # examples are small; making them smaller takes minutes
)
OPEN, CLOSE = "«", "»"


def marked(text: MarkedText) -> MarkedText:
    """Return a text between marks, with the same spans."""
    spans = (replace(span, start=span.start + 1, end=span.end + 1) for span in text.spans)
    return MarkedText(f"{OPEN}{text.text}{CLOSE}", tuple(spans))


def translated(document: Document) -> bytes:
    """Return the document with all texts between marks."""
    return document.write([marked(text) for text in document.texts])


def zipped(members: Mapping[str, str | bytes]) -> bytes:
    """Return an archive whose first member is stored and whose others are compressed."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for i, (name, data) in enumerate(members.items()):
            method = zipfile.ZIP_DEFLATED if i else zipfile.ZIP_STORED
            archive.writestr(zipfile.ZipInfo(name, (2020, 2, 3, 4, 5, 6)), data, method)
    return raw.getvalue()


def unzipped(content: bytes) -> dict[str, bytes]:
    """Return the members of an archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}
