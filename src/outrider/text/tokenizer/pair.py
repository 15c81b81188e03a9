"""Two tokenizers: that of a pretrained encoder reads the source, one of ours writes the target.

The encoder was trained with special tokens around a text, such as `[CLS] ... [SEP]`, and its own
tokenizer knows which. Ids keep those in front. The one behind, the end token, is left out: in
Outrider ids never hold the end of a text, the model adds it. GPT-2's tokenizer puts nothing around
a text; its end is the token that stood between the texts it was trained on.

The tokenizer of the other direction: it reads what one writes, and writes what it reads.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, ModelError
from outrider.text.tokenizer.subword import (
    SubwordTokenizer,
    Tokenizer,
    guarded,
    largest_id,
    read_pipeline,
)

__all__ = ["SOURCE_FILE", "PairTokenizer", "SourceTokenizer", "reversed_tokenizer"]

SOURCE_FILE = "source_tokenizer.json"
"""Lies beside the tokenizer of the target, in prepared folders and model folders."""
BETWEEN = "<|endoftext|>"
"""What GPT-2 was shown between texts."""


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
        """Ids of many texts, in parallel, without the end token; none where there is no text."""
        with guarded(f"{SOURCE_FILE}: cannot read this text"):
            encoded = self.pipeline.encode_batch_fast(list(texts))
        rows = [row.ids[: len(row.ids) - self._behind] for row in encoded]
        return [[] if ids == self._before else ids for ids in rows]

    def save(self, file: Path) -> None:
        """Write the one file it is made from."""
        file.write_text(self.pipeline.to_str(), encoding="utf-8")


def _frames(around: Sequence[int], row: Sequence[int]) -> bool:
    """Whether a row begins and ends as an empty one does."""
    before = len(around) - 1
    return row[-1] == around[-1] and row[:before] == around[:before]


class PairTokenizer:
    """Reads sources with one vocabulary and writes targets in another; its ids are the target's."""

    def __init__(self, source: SourceTokenizer, target: Tokenizer) -> None:
        self.source, self.target = source, target
        self.vocab_size = target.vocab_size
        self.pad_id, self.eos_id = target.pad_id, target.eos_id
        self.unk_id, self.bos_id = target.unk_id, target.bos_id

    def encode(self, text: str) -> list[int]:
        """Ids of one source text."""
        return self.source.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many source texts."""
        return self.source.encode_batch(texts)

    def encode_target_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many target texts."""
        return self.target.encode_target_batch(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target ids."""
        return self.target.decode(ids)

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Texts of many rows of target ids."""
        return self.target.decode_batch(rows)

    def save(self, folder: str | Path) -> None:
        """Write the files of both."""
        self.target.save(folder)
        self.source.save(Path(folder) / SOURCE_FILE)


def reversed_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Exchange the sides of a tokenizer."""
    if isinstance(tokenizer, SubwordTokenizer):
        return tokenizer  # both sides are read alike
    from outrider.text.tokenizer.marian import SPECIAL, MarianTokenizer  # needs SentencePiece

    if not isinstance(tokenizer, MarianTokenizer):
        raise ConfigError("reverse", "this model reads with a tokenizer that cannot write")
    read, written = tokenizer.names
    for name in SPECIAL:
        if read[name] != written[name]:
            raise ConfigError("reverse", f"the sides of this model number {name} differently")
    return tokenizer.reversed()
