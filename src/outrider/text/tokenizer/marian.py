"""The tokenizer of a Marian (OPUS-MT) folder: two SentencePiece models and a vocabulary.

SentencePiece cuts the text, `vocab.json` numbers the pieces (their numbers in the SentencePiece
files mean nothing here). A leading `>>xxx<<`, with which multilingual models choose the language to
translate to, is one token. Marian has no begin-of-text; its decoder starts with the padding token.
Tokens that came later stand in `added_tokens.json`, where transformers looks for them too.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import Any
from unicodedata import category, east_asian_width

import sentencepiece

from outrider.errors import ModelError
from outrider.files import read_json, read_limited, write_bytes
from outrider.text.tokenizer.sentencepiece_export import keep_pieces
from outrider.text.tokenizer.subword import BYTE, drop_half_bytes

__all__ = ["LARGEST_MODEL", "MarianTokenizer", "read_marian"]

FILES = ("source.spm", "target.spm", "vocab.json")
LARGEST_MODEL = 64 << 20
"""Bytes of a SentencePiece model or a vocabulary; those in use have a few million."""
MARK = "\u2581"
"""Begins a piece that begins a word."""
SPECIAL = ("<pad>", "</s>", "<unk>")
ADDED_FILE = "added_tokens.json"


class MarianTokenizer:
    """Reads and writes the ids of a Marian model; the sides may have vocabularies of their own."""

    def __init__(
        self,
        folder: Path,
        *,
        source: bytes,
        target: bytes | Callable[[], bytes],
        source_ids: dict[str, int],
        target_ids: dict[str, int],
        config: bytes = b"{}",
        added: Sequence[str] = (),
    ) -> None:
        """Put the parts together.

        Args:
            folder: Where they lie; named when one of them is wrong.
            source: `source.spm`.
            target: `target.spm`, or what makes one: texts are written without it.
            source_ids: The vocabulary of the source.
            target_ids: The vocabulary of the target; the same object where they share one.
            config: `tokenizer_config.json`.
            added: Tokens whose ids come behind those of both vocabularies.
        """
        self._folder, self._config = folder, config
        self._source_file, self._target_file = source, target
        self._source_ids, self._target_ids = source_ids, target_ids
        first = max(*source_ids.values(), *target_ids.values()) + 1
        self._added = {token: first + number for number, token in enumerate(added)}
        self._source = self._pieces("source.spm", source)
        if isinstance(target, bytes):
            self._target  # noqa: B018 -- a damaged file is named now
        self._tokens = {index: token for token, index in (target_ids | self._added).items()}
        self.vocab_size = first + len(added)
        self.pad_id, self.eos_id, self.unk_id = (source_ids[token] for token in SPECIAL)
        self.bos_id = self.pad_id

    def encode(self, text: str) -> list[int]:
        """Ids of one source text."""
        code, text = _language_code(text)
        (pieces,) = self._cut(self._source, [text])
        return self._number([*code, *pieces], self._source_ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many source texts."""
        return [self.encode(text) for text in texts]

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many target texts."""
        rows = self._cut(self._target, texts)
        return [self._number(row, self._target_ids) for row in rows]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target ids, special tokens left out."""
        special = {self.pad_id, self.eos_id, self.unk_id}
        tokens = [self._tokens[i] for i in ids if i not in special and i in self._tokens]
        text = ""
        for new, run in groupby(tokens, key=self._added.__contains__):
            pieces = list(run)
            for part in pieces if new else [self._join(pieces)]:
                text += part if _is_wide_mark(text[-1:]) or _is_wide_mark(part) else f" {part}"
        return text.strip()

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Texts of many rows of target ids."""
        return [self.decode(row) for row in rows]

    def save(self, folder: str | Path) -> None:
        """Write the files of the tokenizer."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files = {"source.spm": self._source_file, "tokenizer_config.json": self._config}
        files["target.spm"] = self._target.serialized_model_proto()
        files["vocab.json"] = json.dumps(self._source_ids, ensure_ascii=False).encode()
        if self._target_ids is not self._source_ids:
            files["target_vocab.json"] = json.dumps(self._target_ids, ensure_ascii=False).encode()
        if self._added:
            files[ADDED_FILE] = json.dumps(self._added, ensure_ascii=False).encode()
        for name, content in files.items():
            write_bytes(folder / name, content)

    def extended(self, tokens: Sequence[str]) -> "MarianTokenizer":
        """Return a tokenizer that knows further tokens, their ids behind all others."""
        return MarianTokenizer(
            self._folder,
            source=self._source_file,
            target=self._target_file,
            source_ids=self._source_ids,
            target_ids=self._target_ids,
            config=self._config,
            added=[*self._added, *tokens],
        )

    def cut(self, source: Sequence[str], target: Sequence[str]) -> "MarianTokenizer":
        """Return a tokenizer of some of its tokens, numbered as they stand in these lists.

        What was a token and is none any more is written with shorter ones.
        """
        made = self._target.serialized_model_proto()
        config = json.loads(self._config) | {"separate_vocabs": source != target}
        source_ids, target_ids = ({t: n for n, t in enumerate(one)} for one in (source, target))
        return MarianTokenizer(
            self._folder,
            source=keep_pieces(self._source_file, source_ids),
            target=keep_pieces(made, target_ids),
            source_ids=source_ids,
            target_ids=source_ids if source == target else target_ids,
            config=json.dumps(config, indent=2).encode(),
        )

    def reversed(self) -> "MarianTokenizer":
        """Return a tokenizer that reads what this one writes, and writes what it reads."""
        config = json.loads(self._config)
        read, written = (config.pop(key, None) for key in ("source_lang", "target_lang"))
        named = {"source_lang": written, "target_lang": read}
        config |= {key: language for key, language in named.items() if language}
        return MarianTokenizer(
            self._folder,
            source=self._target.serialized_model_proto(),
            target=self._source_file,
            source_ids=self._target_ids,
            target_ids=self._source_ids,
            config=json.dumps(config, indent=2).encode(),
            added=[*self._added],
        )

    def reads(self, token: str) -> bool:
        """Whether a text of the source can be cut into this token and others."""
        return bool(self._source.piece_to_id(token) != self._source.unk_id())

    @property
    def names(self) -> tuple[dict[str, int], dict[str, int]]:
        """The vocabularies of the source and of the target: the id of every token."""
        return self._source_ids | self._added, self._target_ids | self._added

    @cached_property
    def _target(self) -> sentencepiece.SentencePieceProcessor:
        made = self._target_file
        return self._pieces("target.spm", made if isinstance(made, bytes) else made())

    def _cut(self, model: sentencepiece.SentencePieceProcessor, texts: Sequence[str]) -> Any:
        """Cut texts into pieces; tokens that were added are found first, the longest first."""
        if not self._added:
            return model.encode(list(texts), out_type=str)
        longest_first = sorted(self._added, key=len, reverse=True)
        added = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        rows: list[list[str]] = []
        for text in texts:
            parts = [part for part in added.split(text) if part]
            cut = [[p] if p in self._added else model.encode(p, out_type=str) for p in parts]
            rows.append([*chain.from_iterable(cut)])
        return rows

    def _join(self, pieces: list[str]) -> str:
        """Make text of pieces."""
        if any(map(BYTE.fullmatch, pieces)):
            pieces = drop_half_bytes(pieces)
            return str(self._target.decode_pieces(pieces)).strip()
        if isinstance(self._target_file, bytes):
            return str(self._target.decode_pieces(pieces)).strip()
        return "".join(pieces).replace(MARK, " ").strip()

    def _number(self, tokens: Sequence[str], ids: dict[str, int]) -> list[int]:
        unknown = ids["<unk>"]
        return [ids.get(token, self._added.get(token, unknown)) for token in tokens]

    def _pieces(self, name: str, raw: bytes) -> sentencepiece.SentencePieceProcessor:
        try:
            return sentencepiece.SentencePieceProcessor(model_proto=raw)
        except (RuntimeError, OSError):
            raise ModelError(f"{self._folder / name}: is not a SentencePiece model") from None


def read_marian(folder: Path) -> MarianTokenizer:
    """Read the tokenizer of a Marian folder."""
    for name in FILES:
        if not (folder / name).is_file():
            raise ModelError(f"{folder / name}: missing; a Marian tokenizer needs it")
    source, target = (read_limited(folder / name, limit=LARGEST_MODEL) for name in FILES[:2])
    source_ids = _vocabulary(folder / "vocab.json")
    other, about = (folder / name for name in ("target_vocab.json", "tokenizer_config.json"))
    target_ids = _vocabulary(other) if other.is_file() else source_ids
    first = max(*source_ids.values(), *target_ids.values()) + 1
    return MarianTokenizer(
        folder,
        source=source,
        target=target,
        source_ids=source_ids,
        target_ids=target_ids,
        config=read_limited(about, limit=LARGEST_MODEL) if about.is_file() else b"{}",
        added=_read_added(folder / ADDED_FILE, source_ids, first),
    )


def _vocabulary(path: Path) -> dict[str, int]:
    ids: dict[str, int] = read_json(path, limit=LARGEST_MODEL)
    for token, index in ids.items():
        if type(index) is not int or index < 0:
            raise ModelError(f"{path}: {token[:80]!r} has the number {index!r}, expected an id")
    missing = [token for token in SPECIAL if token not in ids]
    if missing:
        raise ModelError(f"{path}: has no {missing[0]}")
    return ids


def _read_added(path: Path, known: dict[str, int], first: int) -> list[str]:
    """Tokens that were added once; `first` is the id behind the vocabularies."""
    if not path.is_file():
        return []
    found: dict[str, Any] = read_json(path, limit=LARGEST_MODEL)
    # Transformers writes the special tokens there as well.
    added = [(index, token) for token, index in found.items() if token and token not in known]
    whole = all(type(index) is int for index, _ in added)
    if not whole or sorted(index for index, _ in added) != [*range(first, first + len(added))]:
        raise ModelError(f"{path}: its ids do not go on behind those of vocab.json")
    return [token for _, token in sorted(added)]


def _is_wide_mark(token: str) -> bool:
    """Whether a token is a mark of Chinese or Japanese, around which there are no blanks."""
    return len(token) == 1 and category(token)[0] == "P" and east_asian_width(token) in "FW"


def _language_code(text: str) -> tuple[list[str], str]:
    end = text.find("<<")
    if text.startswith(">>") and end != -1:
        return [text[: end + 2]], text[end + 2 :]
    return [], text
