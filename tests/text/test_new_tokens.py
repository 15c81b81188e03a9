"""Added tokens get one id each; all other ids stay."""

from pathlib import Path

import pytest
from transformers import MarianTokenizer as TheirTokenizer

from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.errors import ConfigError, ModelError
from outrider.text.tokenizer import SubwordTokenizer, Tokenizer, load_tokenizer
from outrider.text.tokenizer.sentencepiece_export import write_sentencepiece
from outrider.text.tokenizer.vocabulary import add_tokens
from tests.helpers.corpus import sentences

NEW = ["<tag>", "<tag>2", ">>deu<<"]
TEXTS = sentences(30, seed=3)


@pytest.fixture(params=["unigram", "bpe", "char", "marian"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    kind = request.param
    config = TokenizerConfig(kind="unigram" if kind == "marian" else kind, vocab_size=450)
    trained = train_tokenizer(sentences(500), config)
    if kind != "marian":
        return trained
    write_sentencepiece(trained, tmp_path)
    return load_tokenizer(tmp_path)


def test_new_tokens_are_appended_and_nothing_else_changes(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    words = tokenizer.vocab_size
    grown = add_tokens(tokenizer, NEW)
    assert grown.vocab_size == words + 3
    assert grown.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    assert grown.encode_target_batch(TEXTS) == tokenizer.encode_target_batch(TEXTS)
    assert grown.encode("<tag>") == [words]
    assert grown.encode_target_batch(["a dog<tag>2"])[0][-1] == words + 1, "the longest is taken"
    assert grown.encode(">>deu<< a dog")[0] == words + 2
    for text in ("the dog <tag> runs", "<tag>2 the old man", "a cat <tag>"):
        assert grown.decode(grown.encode_target_batch([text])[0]) == text
    assert tokenizer.vocab_size == words, "the one it came from stays as it is"

    grown.save(tmp_path / "saved")
    loaded = load_tokenizer(tmp_path / "saved")
    mixed = [f"{text} <tag> {text}<tag>2" for text in TEXTS]
    assert loaded.vocab_size == grown.vocab_size
    assert loaded.encode_batch(mixed) == grown.encode_batch(mixed)
    again = add_tokens(loaded, ["<more>"])
    assert again.encode("a <more> <tag>")[-1] == words
    assert again.vocab_size == words + 4


@pytest.mark.parametrize(
    "text", ["a dog，the cat！", "，a dog", "the man（a cat）runs", "a，，cat"]
)
def test_wide_punctuation_has_no_spaces_around_it(
    unigram: SubwordTokenizer, tmp_path: Path, text: str
) -> None:
    """NFKC would fold these punctuation marks to ASCII; a Chinese model could not write them."""
    write_sentencepiece(unigram, tmp_path)
    grown = add_tokens(load_tokenizer(tmp_path), ["，", "！", "（", "）"])
    (ids,) = grown.encode_target_batch([text])
    assert grown.decode(ids) == text


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_transformers_finds_them_in_a_marian_folder(
    unigram: SubwordTokenizer, tmp_path: Path
) -> None:
    write_sentencepiece(unigram, tmp_path)
    add_tokens(load_tokenizer(tmp_path), ["<tag>"]).save(tmp_path / "saved")
    theirs = TheirTokenizer.from_pretrained(tmp_path / "saved")
    ours = load_tokenizer(tmp_path / "saved")
    for text in ("a dog", "the <tag> runs", "<tag> a cat sees <tag>"):
        assert theirs(text)["input_ids"] == [*ours.encode(text), ours.eos_id]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["<a>", "<a>"], r"new_tokens: got '<a>', expected tokens without blanks, each once"),
        (["a b"], r"new_tokens: got 'a b'"),
        ([""], r"new_tokens: got ''"),
        (["</s>"], r"new_tokens: '</s>' is in the vocabulary already; leave it out"),
    ],
)
def test_invalid_new_tokens_are_refused(
    tokenizer: Tokenizer, tokens: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        add_tokens(tokenizer, tokens)


@pytest.mark.parametrize("text", ['{"<a>": 9}', '{"<a>": "450"}', '{"<a>": [1]}'])
def test_added_tokens_with_wrong_ids_are_refused(
    unigram: SubwordTokenizer, tmp_path: Path, text: str
) -> None:
    write_sentencepiece(unigram, tmp_path)
    (tmp_path / "added_tokens.json").write_text(text)
    with pytest.raises(ModelError, match=r"added_tokens\.json: its ids do not follow"):
        load_tokenizer(tmp_path)


def test_new_tokens_need_an_existing_tokenizer() -> None:
    with pytest.raises(ValueError, match="new_tokens are for an existing tokenizer"):
        TokenizerConfig(new_tokens=("<a>",))
