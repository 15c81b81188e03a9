"""Trained tokenizers: lossless, reproducible; text that looks special is encoded as text."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.errors import ConfigError
from outrider.text.tokenizer import SubwordTokenizer, load_tokenizer
from tests.helpers.corpus import sentences

KINDS = ["unigram", "bpe", "char"]
TRICKY = [
    "",
    " ",
    "the dog",
    "  the\tdog \n",
    "</s> <pad> <s> <unk>",
    "<0x41> <0x0A>",
    "你好，世界。",
    "Zoë\u0301 e\u0301",
    "emoji 😀 👩‍👩‍👧",
    "a\u00a0b\u3000c",
]


def train(kind: str, *, verbatim: bool = False, lines: list[str] | None = None) -> SubwordTokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=450)  # type: ignore[arg-type]
    return train_tokenizer(lines or sentences(400), config, verbatim=verbatim)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> SubwordTokenizer:
    return train(request.param)


@pytest.fixture(scope="module", params=KINDS)
def verbatim(request: pytest.FixtureRequest) -> SubwordTokenizer:
    lines = [f"{line}\n" for line in sentences(400)]
    return train(request.param, verbatim=True, lines=lines)


def test_special_ids(tokenizer: SubwordTokenizer) -> None:
    ids = tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.bos_id
    assert ids == (0, 1, 2, 3)


def test_known_text_is_decoded_unchanged(tokenizer: SubwordTokenizer) -> None:
    texts = sentences(100, seed=9)
    assert tokenizer.decode_batch(tokenizer.encode_batch(texts)) == texts
    assert [tokenizer.encode(text) for text in texts] == tokenizer.encode_target_batch(texts)


@pytest.mark.parametrize("text", TRICKY)
def test_text_never_gives_special_tokens(tokenizer: SubwordTokenizer, text: str) -> None:
    assert not set(tokenizer.encode(text)) & {tokenizer.pad_id, tokenizer.eos_id, tokenizer.bos_id}


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_any_text_is_decoded_unchanged(kind: str) -> None:
    tokenizer = train(kind)

    @settings(max_examples=100)
    @given(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="▁")))
    @example("</s>")
    @example("<0x41>")
    def check(text: str) -> None:
        normal = tokenizer.pipeline.normalizer.normalize_str(text)
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == normal
        assert tokenizer.unk_id not in ids

    check()


def test_white_space_is_normalised(tokenizer: SubwordTokenizer) -> None:
    ids = tokenizer.encode("the dog sees")
    assert tokenizer.encode("  the\t dog\u00a0\u3000sees\n") == ids
    assert tokenizer.decode(ids) == "the dog sees"


def test_verbatim_keeps_all_white_space(verbatim: SubwordTokenizer) -> None:
    text = "  the dog\n\n sees  \n a  cat\n"
    assert verbatim.decode(verbatim.encode(text)) == text


def test_characters_are_one_token_each() -> None:
    tokenizer = train("char", verbatim=True, lines=["ab\n", "ba c"])
    assert tokenizer.vocab_size == 4 + 5
    assert len(tokenizer.encode("a b\nc")) == 5
    assert tokenizer.encode("axb") == [tokenizer.encode("a")[0], 2, tokenizer.encode("b")[0]]


def test_the_vocabulary_has_the_requested_size(tokenizer: SubwordTokenizer) -> None:
    assert tokenizer.vocab_size <= 450
    assert tokenizer.vocab_size == len(tokenizer.pipeline.get_vocab())


@pytest.mark.parametrize("kind", KINDS)
def test_training_twice_gives_the_same_tokenizer(kind: str) -> None:
    assert train(kind).pipeline.to_str() == train(kind).pipeline.to_str()


def test_rare_characters_are_encoded_as_bytes() -> None:
    lines = [*sentences(400), "Ω"]
    config = TokenizerConfig(vocab_size=450, coverage=0.99)
    tokenizer = train_tokenizer(lines, config)
    pieces = [tokenizer.pipeline.id_to_token(i) for i in tokenizer.encode("Ω")]
    assert pieces[-2:] == ["<0xCE>", "<0xA9>"]


def test_nfkc_folds_more_than_nfc() -> None:
    config = TokenizerConfig(vocab_size=450, normalization="nfkc")
    folded = train_tokenizer(sentences(400), config)
    assert folded.decode(folded.encode("ﬁ，")) == "fi,"
    kept = train("unigram")
    assert kept.decode(kept.encode("ﬁ，")) == "ﬁ，"


@pytest.mark.parametrize("text", TRICKY)
def test_transformers_gives_the_same_ids_and_the_end(
    tokenizer: SubwordTokenizer, text: str, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ids = theirs(text)["input_ids"]
    assert ids == [*tokenizer.encode(text), 1]
    assert theirs.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)
    assert theirs.pad_token_id == 0
    assert load_tokenizer(tmp_path).encode(text) == tokenizer.encode(text)


def test_transformers_adds_the_start_token_to_running_text(
    verbatim: SubwordTokenizer, tmp_path: Path
) -> None:
    verbatim.save(tmp_path)
    text = "the dog\n sees"
    assert AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"] == [3, *verbatim.encode(text)]


def test_saving_again_gives_the_same_file(tokenizer: SubwordTokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "one")
    load_tokenizer(tmp_path / "one").save(tmp_path / "two")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        one, two = (json.loads((tmp_path / f / name).read_text()) for f in ("one", "two"))
        assert one == two


def test_a_vocabulary_too_small_for_the_bytes_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"data.tokenizer.vocab_size: .*100"):
        train_tokenizer(sentences(50), TokenizerConfig(vocab_size=100))
