"""Pairs of a pretrained encoder's tokenizer for the source and another for the target.

The encoder's tokenizer adds special tokens, such as `[CLS] ... [SEP]`. Ids keep those before the
text, but not the end token, which the model adds. GPT-2's tokenizer adds none; its end token is the
separator of its training texts.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigError, ModelError
from outrider.text.tokenizer.subword import (
    SubwordTokenizer,
    Tokenizer,
    guarded,
    largest_id,
    read_pipeline,
)

if TYPE_CHECKING:
    from outrider.text.alignment import Range

SOURCE_FILE = "source_tokenizer.json"
"""The source tokenizer's file, in prepared folders and model folders."""
BETWEEN = "<|endoftext|>"
"""GPT-2's separator of texts."""


class SourceTokenizer:
    """A pipeline of the `tokenizers` library that adds the special tokens of an encoder."""

    def __init__(self, file: str | Path) -> None:
        pipeline: Any = read_pipeline(Path(file))
        self.pipeline = pipeline
        self.vocab_size = largest_id(pipeline) + 1
        with guarded(f"{file}: cannot read a text"):
            around, letter = (pipeline.encode(text).ids for text in ("", "a"))
        between = None if around else pipeline.token_to_id(BETWEEN)
        self._before: list[int] = around[:-1]
        self._behind = 0 if between is not None else 1
        if between is None and not (around and _frames(around, letter)):
            raise ModelError(
                f"{file}: puts no end token behind a text, as the tokenizer of an encoder does, "
                f"and has no {BETWEEN}"
            )
        self.end_id: int = around[-1] if between is None else between

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several texts without the end token; none for an empty text."""
        with guarded(f"{SOURCE_FILE}: cannot read this text"):
            encoded = self.pipeline.encode_batch_fast(list(texts))
        rows = [row.ids[: len(row.ids) - self._behind] for row in encoded]
        return [[] if ids == self._before else ids for ids in rows]

    def ranges(self, text: str) -> list["Range"]:
        """Return the characters of each token without the end token."""
        with guarded(f"{SOURCE_FILE}: cannot read this text"):
            offsets = self.pipeline.encode(text).offsets
        return list(offsets[: len(offsets) - self._behind])

    def save(self, file: Path) -> None:
        """Write the tokenizer's file."""
        file.write_text(self.pipeline.to_str(), encoding="utf-8")


def _frames(around: Sequence[int], row: Sequence[int]) -> bool:
    """Whether a row begins and ends as an empty one does."""
    before = len(around) - 1
    return row[-1] == around[-1] and row[:before] == around[:before]


class PairTokenizer:
    """Two tokenizers with their own vocabularies; the special ids are the target's."""

    def __init__(self, source: SourceTokenizer, target: Tokenizer) -> None:
        self.source, self.target = source, target
        self.vocab_size = target.vocab_size
        self.pad_id, self.eos_id = target.pad_id, target.eos_id
        self.unk_id, self.bos_id = target.unk_id, target.bos_id

    def encode(self, text: str) -> list[int]:
        """Return the ids of a source."""
        return self.source.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several sources."""
        return self.source.encode_batch(texts)

    def source_ranges(self, text: str) -> list["Range"]:
        """Return the characters of each token of a source."""
        return self.source.ranges(text)

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several targets."""
        return self.target.encode_target_batch(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target ids."""
        return self.target.decode(ids)

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of several rows of target ids."""
        return self.target.decode_batch(rows)

    def save(self, folder: str | Path) -> None:
        """Write the files of both tokenizers."""
        self.target.save(folder)
        self.source.save(Path(folder) / SOURCE_FILE)


def reversed_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with source and target exchanged."""
    if isinstance(tokenizer, SubwordTokenizer):
        return tokenizer  # one vocabulary for both sides
    from outrider.text.tokenizer.marian import SPECIAL, MarianTokenizer  # needs SentencePiece

    if not isinstance(tokenizer, MarianTokenizer):
        raise ConfigError("reverse", "this model reads with a tokenizer that cannot write")
    read, written = tokenizer.names
    for name in SPECIAL:
        if read[name] != written[name]:
            raise ConfigError("reverse", f"the sides of this model number {name} differently")
    return tokenizer.reversed()
