"""Documents: locates the texts of a file, and writes the file with their translations.

A format is one file with a function `read(content: bytes) -> Document`.
"""

from collections.abc import Sequence
from typing import Protocol

from outrider.documents.marked import MarkedText


class Document(Protocol):
    """A file whose texts can be replaced."""

    @property
    def texts(self) -> Sequence[MarkedText]:
        """The texts to translate, in reading order."""
        ...

    def write(self, translations: Sequence[MarkedText]) -> bytes:
        """Return the file with these texts; with `texts` themselves, the unchanged bytes."""
        ...
