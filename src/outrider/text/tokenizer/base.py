"""What every tokenizer can do: text to ids and back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

__all__ = ["Tokenizer"]


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
