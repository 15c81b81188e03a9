"""Tests that need only `pip install outrider`; CI runs them in such an environment."""

import os
from pathlib import Path

import pytest

from outrider.formats.spec import LanguageModelSpec
from tests.helpers import plain_folder

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OUTRIDER_CACHE"] = "off"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(autouse=True)
def _no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the native core, which is the default without `OUTRIDER_BACKEND`."""
    pytest.importorskip("outrider_native", reason="outrider-native is not installed")
    monkeypatch.delenv("OUTRIDER_BACKEND", raising=False)


@pytest.fixture(scope="session")
def demo() -> Path:
    return plain_folder.DEMO


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model."""
    config = LanguageModelSpec(
        vocab_size=plain_folder.WORDS,
        hidden_size=16,
        layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        position="rotary",
    )
    return plain_folder.save(tmp_path_factory.mktemp("light") / "writer", config)
