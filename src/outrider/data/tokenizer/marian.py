"""The tokenizer of a Marian (OPUS-MT) folder: two SentencePiece models and a vocabulary.

SentencePiece cuts the text, `vocab.json` numbers the pieces (their numbers in the SentencePiece
files mean nothing here). A leading `>>xxx<<`, with which multilingual models choose the language to
translate to, is one token. Marian has no begin-of-text; its decoder starts with the padding token.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import sentencepiece

from outrider.errors import ModelError
from outrider.files import read_json, read_limited

__all__ = ["MarianTokenizer"]

FILES = ("source.spm", "target.spm", "vocab.json")
LARGEST_MODEL = 64 << 20
"""Bytes of a SentencePiece model or a vocabulary; those in use have a few million."""
OPTIONAL_FILES = ("target_vocab.json", "tokenizer_config.json")


class MarianTokenizer:
    """Reads and writes the ids of a Marian model; the sides may have vocabularies of their own."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        for name in FILES:
            if not (self._folder / name).is_file():
                raise ModelError(f"{self._folder / name}: missing; a Marian tokenizer needs it")
        self._source = self._pieces("source.spm")
        self._target = self._pieces("target.spm")
        self._source_ids = self._vocabulary("vocab.json")
        separate = (self._folder / "target_vocab.json").is_file()
        self._target_ids = self._vocabulary("target_vocab.json") if separate else self._source_ids
        self._tokens = {index: token for token, index in self._target_ids.items()}
        self.vocab_size = max(*self._source_ids.values(), *self._target_ids.values()) + 1
        self.pad_id, self.eos_id, self.unk_id = (
            self._source_ids[token] for token in ("<pad>", "</s>", "<unk>")
        )
        self.bos_id = self.pad_id

    def encode(self, text: str) -> list[int]:
        """Ids of one source text."""
        code, text = _language_code(text)
        pieces = self._source.encode(text, out_type=str)
        return self._number([*code, *pieces], self._source_ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many source texts."""
        return [self.encode(text) for text in texts]

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many target texts."""
        rows = self._target.encode(list(texts), out_type=str)
        return [self._number(row, self._target_ids) for row in rows]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target ids, special tokens left out."""
        special = {self.pad_id, self.eos_id, self.unk_id}
        tokens = [self._tokens[i] for i in ids if i not in special and i in self._tokens]
        return str(self._target.decode_pieces(tokens)).strip()

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Texts of many rows of target ids."""
        return [self.decode(row) for row in rows]

    def save(self, folder: str | Path) -> None:
        """Copy the files of the tokenizer."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES + OPTIONAL_FILES:
            if (self._folder / name).is_file():
                shutil.copyfile(self._folder / name, folder / name)

    @property
    def names(self) -> tuple[dict[str, int], dict[str, int]]:
        """The vocabularies of the source and of the target: the id of every token."""
        return self._source_ids, self._target_ids

    def _number(self, tokens: Sequence[str], ids: dict[str, int]) -> list[int]:
        return [ids.get(token, self.unk_id) for token in tokens]

    def _pieces(self, name: str) -> sentencepiece.SentencePieceProcessor:
        raw = read_limited(self._folder / name, limit=LARGEST_MODEL)
        try:
            return sentencepiece.SentencePieceProcessor(model_proto=raw)
        except (RuntimeError, OSError):
            raise ModelError(f"{self._folder / name}: is not a SentencePiece model") from None

    def _vocabulary(self, name: str) -> dict[str, int]:
        path = self._folder / name
        ids: dict[str, int] = read_json(path, limit=LARGEST_MODEL)
        for token, index in ids.items():
            if type(index) is not int or index < 0:
                raise ModelError(f"{path}: {token[:80]!r} has the number {index!r}, expected an id")
        missing = [token for token in ("<pad>", "</s>", "<unk>") if token not in ids]
        if missing:
            raise ModelError(f"{path}: has no {missing[0]}")
        return ids


def _language_code(text: str) -> tuple[list[str], str]:
    end = text.find("<<")
    if text.startswith(">>") and end != -1:
        return [text[: end + 2]], text[end + 2 :]
    return [], text
