"""Pipelines of the `tokenizers` library, from files that anybody may have written.

A `tokenizer.json` is a program of sorts. It cannot run code, but it can cut or pad every text, blow
one up beyond all memory, or drive the library into a panic, which is no ordinary exception. Here,
and only here, such files are read, and such panics become an error like any other.
"""

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from outrider.errors import ModelError
from outrider.files import read_limited

__all__ = ["guarded", "largest_id", "read_pipeline"]

LARGEST_FILE = 256 << 20
"""Bytes of a `tokenizer.json`; those of the largest vocabularies in use have 40 MB."""
CHARACTER_MAP = re.compile(rb'"precompiled_charsmap"\s*:\s*("[^"]*")')
"""SentencePiece's map of characters: the length of a table in four bytes, then the table."""
GROWTH = 4096
"""Most characters that the replacements of a pipeline may make of one."""


def read_pipeline(path: Path) -> Any:
    """Read a pipeline that neither pads nor truncates, and never takes text for a special token."""
    raw = read_limited(path, limit=LARGEST_FILE)
    _check_character_maps(path, raw)
    with guarded(f"{path}: is no tokenizer"):
        pipeline = tokenizers.Tokenizer.from_buffer(raw)
        pipeline.no_truncation()
        pipeline.no_padding()
        pipeline.encode_special_tokens = True
        for part in (pipeline.normalizer, pipeline.decoder):
            _check_growth(path, part)
    return pipeline


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Turn whatever the library raises, a panic too, into one sentence that begins with `what`."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{what} ({error})") from None
    except BaseException as error:
        # A panic in Rust is raised as a BaseException of a class that cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise ModelError(f"{what} (the tokenizers library failed: {error})") from None


def largest_id(pipeline: Any) -> int:
    """Return the largest id that a pipeline can write, or -1; ids may have gaps."""
    return max(pipeline.get_vocab(with_added_tokens=True).values(), default=-1)


def _check_character_maps(path: Path, raw: bytes) -> None:
    """Refuse a map that says it is longer than it is: the library would take that much memory."""
    for found in CHARACTER_MAP.finditer(raw):
        try:
            blob = base64.b64decode(json.loads(found[1]))
        except ValueError as error:
            raise ModelError(f"{path}: precompiled_charsmap is not base64 ({error})") from None
        if int.from_bytes(blob[:4], "little") > len(blob) - 4:
            raise ModelError(f"{path}: precompiled_charsmap is cut short")


def _check_growth(path: Path, part: Any) -> None:
    """Refuse replacements that, one after the other, make too much of a single character."""
    if part is None:
        return
    growth = _growth(json.loads(part.__getstate__()))
    if growth > GROWTH:
        raise ModelError(
            f"{path}: its replacements can make {growth:.0e} characters of one, "
            f"more than {GROWTH}; this is no honest tokenizer"
        )


def _growth(part: Any) -> int:
    if not isinstance(part, dict):
        return 1
    grown = 1
    for inner in [*part.get("normalizers", []), *part.get("decoders", [])]:
        grown = min(grown * _growth(inner), 1 << 62)
    content = part.get("content", "")
    if part.get("type") == "Replace" and isinstance(content, str):
        # A pattern may match every character, and nothing between two as well.
        grown *= 1 if len(content) <= 1 else len(content) + 1
    return grown
