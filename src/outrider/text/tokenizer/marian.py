"""The tokenizer of a Marian (OPUS-MT) folder: two SentencePiece models and a vocabulary.

SentencePiece segments the text; `vocab.json` has the ids of pieces, not the SentencePiece files. A
leading `>>xxx<<`, the target language of multilingual models, is one token. The decoder starts with
the padding token. Added tokens are in `added_tokens.json`, as in transformers.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category, east_asian_width

import sentencepiece

from outrider.errors import ModelError
from outrider.files import JsonFolder, read_json, read_limited, write_bytes
from outrider.text.tokenizer.subword import BYTE, drop_half_bytes

if TYPE_CHECKING:
    from outrider.text.alignment import Range

FILES = ("source.spm", "target.spm", "vocab.json")
LARGEST_MODEL = 64 << 20
"""Limit of a SentencePiece model or a vocabulary; real ones have a few million bytes."""
MARK = "\u2581"
"""First character of a piece at the beginning of a word."""
SPECIAL = ("<pad>", "</s>", "<unk>")
ADDED_FILE = "added_tokens.json"


class MarianTokenizer:
    """The tokenizer of a Marian model; both sides may have their own vocabulary."""

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
        """Create a tokenizer from its files.

        Args:
            folder: Their folder, for error messages.
            source: `source.spm`.
            target: `target.spm`, or a function that makes it when a target is encoded.
            source_ids: The vocabulary of the source.
            target_ids: The vocabulary of the target; the same object if it is shared.
            config: `tokenizer_config.json`.
            added: Tokens with ids after those of both vocabularies.
        """
        self._folder, self._config = folder, config
        self._source_file, self._target_file = source, target
        self._source_ids, self._target_ids = source_ids, target_ids
        first = max(*source_ids.values(), *target_ids.values()) + 1
        self._added = {token: first + number for number, token in enumerate(added)}
        self._source = self._pieces("source.spm", source)
        if isinstance(target, bytes):
            self._target  # noqa: B018 -- check the file now
        self._tokens = {index: token for token, index in (target_ids | self._added).items()}
        self.vocab_size = first + len(added)
        self.pad_id, self.eos_id, self.unk_id = (source_ids[token] for token in SPECIAL)
        self.bos_id = self.pad_id

    def encode(self, text: str) -> list[int]:
        """Return the ids of a source."""
        code, text = _language_code(text)
        (pieces,) = self._cut(self._source, [text])
        return self._number([*code, *pieces], self._source_ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several sources."""
        return [self.encode(text) for text in texts]

    def source_ranges(self, text: str) -> list["Range"]:
        """Return the characters of each token of a source."""
        code, rest = _language_code(text)
        start = len(text) - len(rest)
        ranges: list[Range] = [(0, start)] if code else []
        for part in self._parts(rest):
            if part in self._added:
                ranges.append((start, start + len(part)))
            else:
                offsets = self._source.encode(part, out_type="offset_mapping")["offsets"]
                ranges += [(start + first, start + last) for first, last in offsets]
            start += len(part)
        return ranges

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several targets."""
        rows = self._cut(self._target, texts)
        return [self._number(row, self._target_ids) for row in rows]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target ids without special tokens."""
        special = {self.pad_id, self.eos_id, self.unk_id}
        tokens = [self._tokens[i] for i in ids if i not in special and i in self._tokens]
        text = ""
        for new, run in groupby(tokens, key=self._added.__contains__):
            pieces = list(run)
            for part in pieces if new else [self._join(pieces)]:
                text += part if _is_wide_mark(text[-1:]) or _is_wide_mark(part) else f" {part}"
        return text.strip()

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of several rows of target ids."""
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
        """Return a tokenizer with further tokens, whose ids follow all others."""
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
        """Return a tokenizer with these tokens, in this order; others are split."""
        from outrider.text.tokenizer.sentencepiece_export import keep_pieces

        target_model = self._target.serialized_model_proto()
        config = json.loads(self._config) | {"separate_vocabs": source != target}
        source_ids, target_ids = ({t: n for n, t in enumerate(side)} for side in (source, target))
        return MarianTokenizer(
            self._folder,
            source=keep_pieces(self._source_file, source_ids),
            target=keep_pieces(target_model, target_ids),
            source_ids=source_ids,
            target_ids=source_ids if source == target else target_ids,
            config=json.dumps(config, indent=2).encode(),
        )

    def reversed(self) -> "MarianTokenizer":
        """Return a tokenizer with source and target exchanged."""
        config = json.loads(self._config)
        source, target = (config.pop(key, None) for key in ("source_lang", "target_lang"))
        languages = {"source_lang": target, "target_lang": source}
        config |= {key: language for key, language in languages.items() if language}
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
        """Whether segmentation of a source can produce a token."""
        return bool(self._source.piece_to_id(token) != self._source.unk_id())

    @property
    def names(self) -> tuple[dict[str, int], dict[str, int]]:
        """The ids of the tokens of the source and of the target."""
        return self._source_ids | self._added, self._target_ids | self._added

    @cached_property
    def _target(self) -> sentencepiece.SentencePieceProcessor:
        file = self._target_file
        return self._pieces("target.spm", file if isinstance(file, bytes) else file())

    def _cut(self, model: sentencepiece.SentencePieceProcessor, texts: Sequence[str]) -> Any:
        """Segment texts; added tokens take precedence, the longest first."""
        if not self._added:
            return model.encode(list(texts), out_type=str)
        rows: list[list[str]] = []
        for text in texts:
            parts = self._parts(text)
            cut = [[p] if p in self._added else model.encode(p, out_type=str) for p in parts]
            rows.append([*chain.from_iterable(cut)])
        return rows

    def _parts(self, text: str) -> list[str]:
        """Divide a text into added tokens and the texts between them."""
        if not self._added:
            return [text]
        return [part for part in self._added_pattern.split(text) if part]

    @cached_property
    def _added_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._added, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def _join(self, pieces: list[str]) -> str:
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
        except (RuntimeError, OSError) as error:
            raise ModelError(f"{self._folder / name}: is not a SentencePiece model") from error


def read_marian(files: JsonFolder) -> MarianTokenizer:
    """Read the tokenizer of a Marian folder."""
    folder = files.path
    for name in FILES:
        if not (folder / name).is_file():
            raise ModelError(f"{folder / name}: missing; a Marian tokenizer needs it")
    source, target = (read_limited(folder / name, limit=LARGEST_MODEL) for name in FILES[:2])
    source_ids = _vocabulary(folder / "vocab.json")
    other, about = folder / "target_vocab.json", "tokenizer_config.json"
    target_ids = _vocabulary(other) if other.is_file() else source_ids
    first = max(*source_ids.values(), *target_ids.values()) + 1
    return MarianTokenizer(
        folder,
        source=source,
        target=target,
        source_ids=source_ids,
        target_ids=target_ids,
        config=files.read(about) if (folder / about).is_file() else b"{}",
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
    """Return added tokens; `first` is the id after both vocabularies."""
    if not path.is_file():
        return []
    ids: dict[str, Any] = read_json(path, limit=LARGEST_MODEL)
    # transformers writes the special tokens there as well.
    added = [(index, token) for token, index in ids.items() if token and token not in known]
    whole = all(type(index) is int for index, _ in added)
    if not whole or sorted(index for index, _ in added) != [*range(first, first + len(added))]:
        raise ModelError(f"{path}: its ids do not follow those of vocab.json")
    return [token for _, token in sorted(added)]


def _is_wide_mark(token: str) -> bool:
    """Whether a token is a Chinese or Japanese punctuation mark, which has no blanks around it."""
    return len(token) == 1 and category(token)[0] == "P" and east_asian_width(token) in "FW"


def _language_code(text: str) -> tuple[list[str], str]:
    end = text.find("<<")
    if text.startswith(">>") and end != -1:
        return [text[: end + 2]], text[end + 2 :]
    return [], text
