"""Documents: locates the texts of a file, and writes the file with their translations.

A format is one file with a function `read(content: bytes) -> Document`.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import PurePath
from typing import Protocol

from outrider.documents.marked import MarkedText
from outrider.errors import InputError, nearest

FORMATS = {
    ".docm": "docx",
    ".docx": "docx",
    ".epub": "epub",
    ".htm": "html",
    ".html": "html",
    ".json": "json",
    ".markdown": "markdown",
    ".md": "markdown",
    ".odt": "odt",
    ".po": "po",
    ".pot": "po",
    ".pptx": "pptx",
    ".properties": "properties",
    ".srt": "subtitles",
    ".txt": "txt",
    ".vtt": "subtitles",
    ".xlf": "xliff",
    ".xliff": "xliff",
    ".xhtml": "html",
    ".xlsx": "xlsx",
}
"""The module of each suffix."""
BILINGUAL = frozenset({"po", "xliff"})
"""Modules whose files name the target language."""
REFUSED = {
    ".pdf": "convert it to docx first, for example with LibreOffice or pdf2docx",
    ".doc": "save it as docx first",
    ".xls": "save it as xlsx first",
    ".ppt": "save it as pptx first",
}


class Document(Protocol):
    """A file whose texts can be replaced."""

    @property
    def texts(self) -> Sequence[MarkedText]:
        """The texts to translate, in reading order."""
        ...

    def write(self, translations: Sequence[MarkedText]) -> bytes:
        """Return the file with these texts; with `texts` themselves, the unchanged bytes."""
        ...


def read_document(content: bytes, name: str, target: str = "") -> Document:
    """Locate the texts of a file.

    Args:
        content: The file.
        name: Its name; the suffix selects the format.
        target: Language of the translation, for formats that name it.
    """
    suffix = PurePath(name).suffix.lower()
    if suffix in REFUSED:
        raise InputError(f"{suffix[1:]} files cannot be translated: {REFUSED[suffix]}")
    if suffix not in FORMATS:
        raise InputError(
            f"{suffix[:20] or 'a name without a suffix'} is no format of documents"
            f"{nearest(suffix, FORMATS)}; the formats are {', '.join(sorted(FORMATS))}"
        )
    module = FORMATS[suffix]
    read = import_module(f"outrider.documents.{module}").read
    document: Document = read(content, target) if module in BILINGUAL else read(content)
    return document
