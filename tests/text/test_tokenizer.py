"""Loading tokenizers; errors name the missing or damaged file."""

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ModelError
from outrider.text.tokenizer import SubwordTokenizer, load_tokenizer


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no tokenizer: neither tokenizer.json nor source"):
        load_tokenizer(tmp_path)


def test_a_damaged_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer.json: is no tokenizer \(.*EOF"):
        load_tokenizer(tmp_path)


def test_a_damaged_config(tmp_path: Path, unigram: SubwordTokenizer) -> None:
    unigram.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(ModelError, match=r"tokenizer_config.json: is not JSON"):
        load_tokenizer(tmp_path)


def test_a_config_without_an_end_token(tmp_path: Path, unigram: SubwordTokenizer) -> None:
    unigram.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": {"content": "<pad>"}}')
    with pytest.raises(ModelError, match=r"has no eos_token; tokenizer_config.json must name it"):
        load_tokenizer(tmp_path)


def test_without_a_config_the_special_tokens_are_ours(
    tmp_path: Path, unigram: SubwordTokenizer
) -> None:
    unigram.save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_tokenizer(tmp_path).encode("the dog") == unigram.encode("the dog")


def pipeline_of(tokenizer: SubwordTokenizer) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(tokenizer.pipeline.to_str())
    return values


def test_padding_and_truncation_are_switched_off(tmp_path: Path, unigram: SubwordTokenizer) -> None:
    unigram.pipeline.enable_truncation(1)
    unigram.pipeline.enable_padding(length=7)
    unigram.save(tmp_path)
    unigram.pipeline.no_truncation()
    unigram.pipeline.no_padding()
    assert load_tokenizer(tmp_path).encode("the green dog") == unigram.encode("the green dog")


def test_the_vocabulary_size_follows_the_largest_id(
    tmp_path: Path, unigram: SubwordTokenizer
) -> None:
    unigram.save(tmp_path)
    words = {"<unk>": 2, "</s>": 1, "<pad>": 0, "<s>": 3, "dog": 70_000}
    values = pipeline_of(unigram)
    values["model"] = {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    assert load_tokenizer(tmp_path).vocab_size == 70_001


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_replacements_that_expand_a_text_are_refused(
    tmp_path: Path, unigram: SubwordTokenizer, part: str
) -> None:
    unigram.save(tmp_path)
    values = pipeline_of(unigram)
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 99}
    values[part] = {"type": "Sequence", f"{part}s": [step] * 6}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match=r"tokenizer.json: its replacements can make 1e\+12 char"):
        load_tokenizer(tmp_path)


def test_a_panic_of_the_library_gives_one_sentence(
    tmp_path: Path, unigram: SubwordTokenizer
) -> None:
    unigram.save(tmp_path)
    values = pipeline_of(unigram)
    values["decoder"] = {"type": "Strip", "content": "a", "start": 10**9, "stop": 9}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    broken = load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match=r"cannot write these tokens \(the tokenizers library"):
        broken.decode([unigram.pipeline.token_to_id("a")])


@pytest.mark.parametrize(
    ("characters", "message"), [("/////w==", "is cut short"), ("a", "is not base64")]
)
def test_a_character_map_has_its_declared_length(
    tmp_path: Path, unigram: SubwordTokenizer, characters: str, message: str
) -> None:
    unigram.save(tmp_path)
    values = pipeline_of(unigram)
    values["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": characters}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match=f"tokenizer.json: precompiled_charsmap {message}"):
        load_tokenizer(tmp_path)
