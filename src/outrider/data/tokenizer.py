"""Tokenizers: text to ids and back.

Ours are `tokenizers` pipelines saved as `tokenizer.json` + `tokenizer_config.json`, so that
`transformers.AutoTokenizer` reads them with the same ids; they are trained in
`tokenizer_training.py`. Folders of Marian models (two SentencePiece files and a vocabulary) are
read by `marian_tokenizer.py`. Beside a pretrained encoder the source has a tokenizer of its own
(`tokenizer_pair.py`). Text never becomes a special token: `</s>` is four letters.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from outrider.data.pipeline import guarded, largest_id, read_pipeline
from outrider.errors import ModelError
from outrider.files import read_json

__all__ = ["SPECIAL_TOKENS", "SubwordTokenizer", "Tokenizer", "load_tokenizer"]

SPECIAL_TOKENS = {
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "bos_token": "<s>",
}
"""Special tokens of our tokenizers in the order of their ids, 0 to 3."""


CANNOT_ENCODE = "tokenizer.json: cannot read this text"
CANNOT_DECODE = "tokenizer.json: cannot write these tokens"


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


class SubwordTokenizer:
    """A pipeline of the `tokenizers` library; both sides share its vocabulary."""

    def __init__(self, pipeline: Any, special: dict[str, str] = SPECIAL_TOKENS) -> None:
        self.pipeline = pipeline
        self.pipeline.encode_special_tokens = True
        self.special = special
        self.vocab_size = largest_id(pipeline) + 1
        self.pad_id = self._id("pad_token")
        self.eos_id = self._id("eos_token")
        self.unk_id = self._id("unk_token", self.pad_id)
        self.bos_id = self._id("bos_token", self.pad_id)

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
            return self.pipeline.decode_batch([list(row) for row in rows], skip_special_tokens=True)

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


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Read the tokenizer of a prepared folder or of a model folder, ours or Marian's."""
    from outrider.data.tokenizer_pair import SOURCE_FILE, PairTokenizer, SourceTokenizer

    folder = Path(folder)
    target = _load_tokenizer(folder)
    source = folder / SOURCE_FILE
    return PairTokenizer(SourceTokenizer(source), target) if source.is_file() else target


def _load_tokenizer(folder: Path) -> Tokenizer:
    if (folder / "tokenizer.json").is_file():
        return _load_subword(folder)
    if (folder / "source.spm").is_file():
        from outrider.data.marian_tokenizer import MarianTokenizer

        return MarianTokenizer(folder)
    raise ModelError(
        f"{folder} holds no tokenizer: neither tokenizer.json nor source.spm with vocab.json"
    )


def _load_subword(folder: Path) -> SubwordTokenizer:
    pipeline = read_pipeline(folder / "tokenizer.json")
    config_file = folder / "tokenizer_config.json"
    if not config_file.exists():
        return SubwordTokenizer(pipeline)
    config = read_json(config_file)
    special = {name: config[name] for name in SPECIAL_TOKENS if config.get(name)}
    return SubwordTokenizer(pipeline, {n: _content(config_file, n, special[n]) for n in special})


def _content(file: Path, name: str, token: Any) -> str:
    """Transformers writes a token as text or as a dictionary around it."""
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise ModelError(f"{file}: {name} is {str(token)[:80]!r}, expected a token")
    return text
