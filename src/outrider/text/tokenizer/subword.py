"""Tokenizers that are a pipeline of the `tokenizers` library, with one vocabulary for both sides.

Saved as `tokenizer.json` + `tokenizer_config.json`, so that `transformers.AutoTokenizer` reads them
with the same ids. Text never becomes a special token: `</s>` is four letters.

What every tokenizer can do: text to ids and back.

Pipelines of the `tokenizers` library, from files that anybody may have written.

A `tokenizer.json` is a program of sorts. It cannot run code, but it can cut or pad every text, blow
one up beyond all memory, or drive the library into a panic, which is no ordinary exception. Here,
and only here, such files are read, and such panics become an error like any other.

Bytes of a character that is not whole are left out of a text.

A model that writes byte by byte may end in the middle of a character, or write bytes that are none.
A decoder would turn them into U+FFFD. Their tokens stay in the result; a U+FFFD that a model writes
itself stays in the text.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from outrider.errors import ModelError
from outrider.files import read_limited

__all__ = [
    "BYTE",
    "SPECIAL_TOKENS",
    "SubwordTokenizer",
    "Tokenizer",
    "drop_half_bytes",
    "drop_half_pieces",
    "guarded",
    "largest_id",
    "read_pipeline",
]

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


class Tokenizer(Protocol):
    """What every tokenizer can do. `encode` adds no special tokens, `decode` skips them."""

    vocab_size: int
    pad_id: int
    eos_id: int
    unk_id: int
    bos_id: int

    def encode(self, text: str) -> list[int]:
        """Ids of one source text, or of any text where both sides share a vocabulary."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many source texts, in parallel."""
        ...

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many target texts."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target ids."""
        ...

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Texts of many rows of target ids."""
        ...

    def save(self, folder: str | Path) -> None:
        """Write the files that `load_tokenizer` and `AutoTokenizer` read."""
        ...


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


SPECIAL_TOKENS = {
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "bos_token": "<s>",
}
"""Special tokens of our tokenizers in the order of their ids, 0 to 3."""

CANNOT_ENCODE = "tokenizer.json: cannot read this text"
REPLACEMENT = "\ufffd"
"""What the `tokenizers` library writes for bytes that are no character; a model may, too."""
CANNOT_DECODE = "tokenizer.json: cannot write these tokens"


class SubwordTokenizer:
    """A pipeline of the `tokenizers` library; both sides share its vocabulary."""

    def __init__(self, pipeline: Any, special: dict[str, str] = SPECIAL_TOKENS) -> None:
        self.pipeline = pipeline
        self.pipeline.encode_special_tokens = True
        self.special = special
        self.vocab_size = largest_id(pipeline) + 1
        self.eos_id = self._id("eos_token")
        self.pad_id = self._id("pad_token", self.eos_id)
        self.unk_id = self._id("unk_token", self.pad_id)
        self.bos_id = self._id("bos_token", self.pad_id)

    @cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """What a tokenizer of another family puts before and behind a text that a model reads."""
        if self.pipeline.post_processor is None:
            return [], []
        with guarded(CANNOT_ENCODE):
            text = self.pipeline.encode("a", add_special_tokens=False).ids
            whole = self.pipeline.encode("a").ids
        beyond = next((index for index in whole if index >= self.vocab_size), None)
        if beyond is not None:
            raise ModelError(
                f"tokenizer.json: its post_processor writes the token {beyond}, "
                f"and its vocabulary ends with {self.vocab_size - 1}"
            )
        for start in range(len(whole) - len(text) + 1):
            if whole[start : start + len(text)] == text:
                return whole[:start], whole[start + len(text) :]
        return [], []

    def encode(self, text: str) -> list[int]:
        """Ids of one text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, in parallel."""
        with guarded(CANNOT_ENCODE):
            rows = self.pipeline.encode_batch_fast(list(texts), add_special_tokens=False)
            return [row.ids for row in rows]

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many target texts: the same, for the vocabulary is shared."""
        return self.encode_batch(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""
        return self.decode_batch([ids])[0]

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Texts of many rows of ids."""
        with guarded(CANNOT_DECODE):
            texts = self.pipeline.decode_batch(
                [list(row) for row in rows], skip_special_tokens=True
            )
            for number, text in enumerate(texts):
                if REPLACEMENT in text:
                    texts[number] = self._decode_whole(rows[number], text)
        return texts

    def _decode_whole(self, ids: Sequence[int], text: str) -> str:
        """Text of ids again, without bytes that are no whole character."""
        decoder = self.pipeline.decoder
        kinds = "" if decoder is None else decoder.__getstate__().decode()
        if '"ByteFallback"' not in kinds and '"ByteLevel"' not in kinds:
            return text
        added = self.pipeline.get_added_tokens_decoder()
        shown = (i for i in ids if i not in added or not added[i].special)
        tokens = [token for token in map(self.pipeline.id_to_token, shown) if token is not None]
        drop = drop_half_bytes if '"ByteFallback"' in kinds else drop_half_pieces
        whole: str = decoder.decode(drop(tokens))
        return whole

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` and the `tokenizer_config.json` that `AutoTokenizer` wants."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(self.pipeline.to_str(pretty=True), encoding="utf-8")
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self.special,
            "padding_side": "right",
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
        }
        text = json.dumps(config, ensure_ascii=False, indent=2)
        (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")

    def _id(self, name: str, otherwise: int | None = None) -> int:
        token = self.special.get(name)
        found = None if token is None else self.pipeline.token_to_id(token)
        if found is None:
            found = otherwise
        if found is None:
            raise ModelError(f"the tokenizer has no {name}; tokenizer_config.json must name it")
        return found
