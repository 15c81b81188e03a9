"""Encodings of web pages: by byte order mark or declaration, otherwise UTF-8."""

import codecs
import re

from outrider.errors import InputError

_BEGINNING = 1024
_META = re.compile(rb"<meta\b[^>]{0,300}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_XML = re.compile(rb"<\?xml\b[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]{1,40})")
_KNOWN = re.compile(
    r"utf-8|iso8859-\d+|cp125\d|cp866|cp874|koi8-[ru]|gbk|gb18030|big5(?:hkscs)?|euc[-_](?:jp|kr)|"
    r"cp949|shift_jis|cp932|mac-(?:roman|cyrillic)|tis-620"
)
_AS_ON_THE_WEB = {
    **dict.fromkeys(("ascii", "iso8859-1"), "cp1252"),
    "iso8859-9": "cp1254",
    **dict.fromkeys(("gb2312", "gbk"), "gb18030"),
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
}
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decode(content: bytes) -> tuple[str, str]:
    """Return the text of a page and its encoding; `encode` returns the same bytes."""
    encoding = _declared(content)
    try:
        text = content.decode(encoding, "surrogateescape")
        if text.encode(encoding, "surrogateescape") == content:
            return text, encoding
    except UnicodeError:
        pass
    raise InputError(f"the page is not in {encoding}, which it declares; convert it to UTF-8")


def encode(text: str, encoding: str) -> bytes:
    """Return text in an encoding; other characters become character references."""
    try:
        return text.encode(encoding, "surrogateescape")
    except UnicodeError:
        pieces = re.split("([\udc80-\udcff]+)", text)
        return b"".join(
            piece.encode(encoding, "surrogateescape" if number % 2 else "xmlcharrefreplace")
            for number, piece in enumerate(pieces)
        )


def _declared(content: bytes) -> str:
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return encoding
    found = _META.search(content[:_BEGINNING]) or _XML.match(content[:_BEGINNING])
    try:
        name = codecs.lookup(found[1].decode("ascii")).name if found else "utf-8"
    except LookupError:
        return "utf-8"
    name = _AS_ON_THE_WEB.get(name, name)
    return name if _KNOWN.fullmatch(name) else "utf-8"
