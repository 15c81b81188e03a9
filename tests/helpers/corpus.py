"""Small corpora and a small tokenizer."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.data.config import PrepareConfig, TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.text.tokenizer import SubwordTokenizer

WORDS = ["the", "a", "dog", "cat", "house", "runs", "sees", "under", "green", "old", "man"]
WORDS += ["woman", "Straße", "über", "köln", "你好", "世界"]

Configure = Callable[..., PrepareConfig]


def sentences(count: int, seed: int = 0) -> list[str]:
    dice = random.Random(seed)
    return [" ".join(dice.choices(WORDS, k=dice.randint(2, 9))) + "." for _ in range(count)]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """Write a corpus of pairs and return a config that prepares it; keywords change the config."""

    def make(
        sources: list[str] | None = None, targets: list[str] | None = None, **changes: Any
    ) -> PrepareConfig:
        sources = sentences(300) if sources is None else sources
        targets = sentences(len(sources), seed=1) if targets is None else targets
        (tmp_path / "train.en").write_text("".join(f"{s}\n" for s in sources), encoding="utf-8")
        (tmp_path / "train.de").write_text("".join(f"{t}\n" for t in targets), encoding="utf-8")
        values: dict[str, Any] = {
            "folder": str(tmp_path / "prepared"),
            "root": str(tmp_path),
            "train": {"source": "train.en", "target": "train.de"},
            "tokenizer": {"kind": "char"},
        }
        return PrepareConfig.model_validate(values | changes)

    return make


@pytest.fixture(scope="session")
def unigram() -> SubwordTokenizer:
    """A trained unigram tokenizer."""
    return train_tokenizer(sentences(500), TokenizerConfig(vocab_size=450))
