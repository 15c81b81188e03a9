"""Tokenizers that are a pipeline of the `tokenizers` library, with one vocabulary for both sides.

Saved as `tokenizer.json` + `tokenizer_config.json`, so that `transformers.AutoTokenizer` reads them
with the same ids. Text never becomes a special token: `</s>` is four letters.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from outrider.errors import ModelError
from outrider.text.tokenizer.half_characters import drop_half_bytes, drop_half_pieces
from outrider.text.tokenizer.pipeline import guarded, largest_id

__all__ = ["SPECIAL_TOKENS", "SubwordTokenizer"]

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
