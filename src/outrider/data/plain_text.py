"""Refusing files that are not lines of text, by their first bytes."""

import codecs
import re

from outrider.errors import DataError

__all__ = ["check_plain_text"]

_BEGINNINGS = {
    b"PK\x03\x04": "is a zip archive (docx, odt, epub, ...)",
    b"%PDF-": "is a PDF document",
    b"{\\rtf": "is an RTF document",
    b"\xd0\xcf\x11\xe0": "is an Office document (doc, xls, ppt)",
    b"WEBVTT": "is a subtitle file (WebVTT)",
    b"[Script Info]": "is a subtitle file (SubStation)",
}
_CUE = re.compile(rb"\s*(?:\d+[^\S\n]*\n\s*)?\d+:\d\d:\d\d[,.]\d{1,3}[^\S\n]+-->")
"""How a SubRip file begins: the number of a cue, and its times."""
MOST_DAMAGED = 0.01
"""Share of the characters that may be damaged; more is another encoding or no text."""


def check_plain_text(head: bytes, name: str) -> None:
    """Refuse what is not text, or not one text a line; `head` is how the file begins."""
    if fault := _fault(head.removeprefix(b"\xef\xbb\xbf")):
        raise DataError(f"{name}: {fault}; give plain text in UTF-8, one text a line")


def _fault(head: bytes) -> str:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return ""  # UTF-16, which every reader of lines refuses
    for beginning, fault in _BEGINNINGS.items():
        if head.startswith(beginning):
            return fault
    if _CUE.match(head):
        return "is a subtitle file (SubRip)"
    if b"\0" in head:
        return "is a binary file"
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(head)
    damaged = text.count("\ufffd") - head.count("\ufffd".encode())
    return "is not UTF-8 text" if damaged > MOST_DAMAGED * len(text) else ""
