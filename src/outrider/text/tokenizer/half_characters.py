"""Bytes of a character that is not whole are left out of a text.

A model that writes byte by byte may end in the middle of a character, or write bytes that are none.
A decoder would turn them into U+FFFD. Their tokens stay in the result; a U+FFFD that a model writes
itself stays in the text.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

__all__ = ["BYTE", "drop_half_bytes", "drop_half_pieces"]

BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
"""A token that is one byte, of SentencePiece and of `ByteFallback`."""

_KEPT = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_MOVED = [byte for byte in range(0x100) if byte not in _KEPT]
_BYTES = {chr(b): b for b in _KEPT} | {chr(0x100 + n): b for n, b in enumerate(_MOVED)}
"""The letters of `ByteLevel`, each of which is a byte."""
_LETTERS = {byte: letter for letter, byte in _BYTES.items()}


def drop_half_bytes(tokens: Iterable[str]) -> list[str]:
    """Leave out the tokens `<0xNN>` of characters that are not whole."""
    kept: list[str] = []
    for is_byte, group in groupby(tokens, key=lambda token: bool(BYTE.fullmatch(token))):
        run = list(group)
        if is_byte:
            halves = _halves(bytes(int(token[3:5], 16) for token in run))
            run = [token for place, token in enumerate(run) if place not in halves]
        kept += run
    return kept


def drop_half_pieces(tokens: Sequence[str]) -> list[str]:
    """Leave out the bytes of characters that are not whole from tokens of `ByteLevel`."""
    parts = [_bytes(token) for token in tokens]
    halves = _halves(b"".join(parts))
    kept: list[str] = []
    place = 0
    for part in parts:
        kept.append("".join(_LETTERS[b] for n, b in enumerate(part, place) if n not in halves))
        place += len(part)
    return kept


def _bytes(token: str) -> bytes:
    if all(letter in _BYTES for letter in token):
        return bytes(_BYTES[letter] for letter in token)
    return token.encode()  # one that was added


def _halves(raw: bytes) -> set[int]:
    """Return the places of bytes that are no part of a whole character."""
    found: set[int] = set()
    start = 0
    while start < len(raw):
        try:
            raw[start:].decode()
        except UnicodeDecodeError as error:
            found.update(range(start + error.start, start + error.end))
            start += error.end
        else:
            break
    return found
