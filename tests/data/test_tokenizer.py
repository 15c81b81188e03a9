"""Loading tokenizers: what is missing or damaged is named."""

from pathlib import Path

import pytest

from outrider.data.tokenizer import SubwordTokenizer, load_tokenizer
from outrider.errors import ModelError


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no tokenizer: neither tokenizer.json nor source"):
        load_tokenizer(tmp_path)


def test_a_damaged_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer.json cannot be read"):
        load_tokenizer(tmp_path)


def test_a_damaged_config(tmp_path: Path, unigram: SubwordTokenizer) -> None:
    unigram.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(ModelError, match=r"tokenizer_config.json cannot be read"):
        load_tokenizer(tmp_path)


def test_a_config_that_names_no_end(tmp_path: Path, unigram: SubwordTokenizer) -> None:
    unigram.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": {"content": "<pad>"}}')
    with pytest.raises(ModelError, match=r"has no eos_token; tokenizer_config.json must name it"):
        load_tokenizer(tmp_path)


def test_without_a_config_the_tokens_are_ours(tmp_path: Path, unigram: SubwordTokenizer) -> None:
    unigram.save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_tokenizer(tmp_path).encode("the dog") == unigram.encode("the dog")
