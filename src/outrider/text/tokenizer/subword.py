"""Tokenizers that are pipelines of the `tokenizers` library, with one vocabulary for both sides.

They are saved as `tokenizer.json` and `tokenizer_config.json`, which `transformers.AutoTokenizer`
reads with the same ids.

A `tokenizer.json` is untrusted: it cannot run code, but it can truncate or pad texts, expand them
beyond all memory, or cause a panic of the library. Such files are read and checked here only, and
panics become errors.

Bytes of incomplete characters, which a byte-level model can generate, are left out of texts instead
of becoming U+FFFD; their tokens stay in the result, and a U+FFFD that is a token stays in the text.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import tokenizers

from outrider.errors import ModelError
from outrider.files import read_limited

if TYPE_CHECKING:
    from outrider.text.alignment import Range

BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
"""A token of one byte, of SentencePiece and of `ByteFallback`."""

_KEPT = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_MOVED = [byte for byte in range(0x100) if byte not in _KEPT]
_BYTES = {chr(b): b for b in _KEPT} | {chr(0x100 + n): b for n, b in enumerate(_MOVED)}
"""The characters of `ByteLevel`, each of which is a byte."""
_LETTERS = {byte: letter for letter, byte in _BYTES.items()}


def drop_half_bytes(tokens: Iterable[str]) -> list[str]:
    """Remove the tokens `<0xNN>` of incomplete characters."""
    kept: list[str] = []
    for is_byte, group in groupby(tokens, key=lambda token: bool(BYTE.fullmatch(token))):
        run = list(group)
        if is_byte:
            halves = _halves(bytes(int(token[3:5], 16) for token in run))
            run = [token for place, token in enumerate(run) if place not in halves]
        kept += run
    return kept


def drop_half_pieces(tokens: Sequence[str]) -> list[str]:
    """Remove the bytes of incomplete characters from tokens of `ByteLevel`."""
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
    return token.encode()  # an added token


def _halves(raw: bytes) -> set[int]:
    """Return the offsets of bytes of incomplete characters."""
    offsets: set[int] = set()
    start = 0
    while start < len(raw):
        try:
            raw[start:].decode()
        except UnicodeDecodeError as error:
            offsets.update(range(start + error.start, start + error.end))
            start += error.end
        else:
            break
    return offsets


class Tokenizer(Protocol):
    """The interface of tokenizers. `encode` adds no special tokens, `decode` skips them."""

    vocab_size: int
    pad_id: int
    eos_id: int
    unk_id: int
    bos_id: int

    def encode(self, text: str) -> list[int]:
        """Return the ids of a source, or of any text if both sides share a vocabulary."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several sources, in parallel."""
        ...

    def source_ranges(self, text: str) -> list["Range"]:
        """Return the characters of each token of a source; a range may be empty."""
        ...

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several targets."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target ids."""
        ...

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of several rows of target ids."""
        ...

    def save(self, folder: str | Path) -> None:
        """Write the files that `load_tokenizer` and `AutoTokenizer` read."""
        ...


LARGEST_FILE = 256 << 20
"""Limit of a `tokenizer.json`; those of the largest vocabularies have 40 MB."""
CHARACTER_MAP = re.compile(rb'"precompiled_charsmap"\s*:\s*("[^"]*")')
"""SentencePiece's map of characters: the length of a table in four bytes, then the table."""
GROWTH = 4096
"""Limit of the characters that the replacements of a pipeline can make of one."""


def read_pipeline(path: Path) -> Any:
    """Read a pipeline without padding, truncation, and special tokens in texts."""
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
    """Convert exceptions and panics of the library to an error that begins with `what`."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{what} ({error})") from error
    except BaseException as error:
        # A panic in Rust is raised as a BaseException of a class that cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise ModelError(f"{what} (the tokenizers library failed: {error})") from error


def largest_id(pipeline: Any) -> int:
    """Return the largest id of a pipeline, or -1; ids may have gaps."""
    return max(pipeline.get_vocab(with_added_tokens=True).values(), default=-1)


def _check_character_maps(path: Path, raw: bytes) -> None:
    """Refuse a map whose stated length is too large: the library would allocate it."""
    for found in CHARACTER_MAP.finditer(raw):
        try:
            blob = base64.b64decode(json.loads(found[1]))
        except ValueError as error:
            raise ModelError(f"{path}: precompiled_charsmap is not base64 ({error})") from error
        if int.from_bytes(blob[:4], "little") > len(blob) - 4:
            raise ModelError(f"{path}: precompiled_charsmap is cut short")


def _check_growth(path: Path, part: Any) -> None:
    """Refuse replacements that together expand a single character too much."""
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
        # A pattern may match every character and every empty string between characters.
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
"""Output of the `tokenizers` library for invalid bytes."""
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
        """The tokens that the post-processor adds before and after a text."""
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
        """Return the ids of a text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several texts, in parallel."""
        with guarded(CANNOT_ENCODE):
            rows = self.pipeline.encode_batch_fast(list(texts), add_special_tokens=False)
            return [row.ids for row in rows]

    def source_ranges(self, text: str) -> list["Range"]:
        """Return the characters of each token."""
        with guarded(CANNOT_ENCODE):
            return list(self.pipeline.encode(text, add_special_tokens=False).offsets)

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several targets; both sides share the vocabulary."""
        return self.encode_batch(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids without special tokens."""
        return self.decode_batch([ids])[0]

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of several rows of ids."""
        with guarded(CANNOT_DECODE):
            texts = self.pipeline.decode_batch(
                [list(row) for row in rows], skip_special_tokens=True
            )
            for number, text in enumerate(texts):
                if REPLACEMENT in text:
                    texts[number] = self._decode_whole(rows[number], text)
        return texts

    def _decode_whole(self, ids: Sequence[int], text: str) -> str:
        """Return the text of ids without bytes of incomplete characters."""
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
        """Write `tokenizer.json`, and `tokenizer_config.json` for `AutoTokenizer`."""
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
