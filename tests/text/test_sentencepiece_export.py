"""Marian files written from a unigram tokenizer, read by transformers and by Outrider."""

import json
from pathlib import Path

import pytest
from transformers import MarianTokenizer as TheirTokenizer

from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.errors import ModelError, UnsupportedError
from outrider.text.tokenizer import SubwordTokenizer, load_tokenizer
from outrider.text.tokenizer.sentencepiece_export import write_sentencepiece
from tests.helpers.corpus import sentences

TEXTS = [*sentences(200, seed=5), "unseen Wörter: Ω, 😀 and 12,345!", "", "x", "<unk> </s> <0x41>"]


@pytest.fixture
def folder(tmp_path: Path, unigram: SubwordTokenizer) -> Path:
    write_sentencepiece(unigram, tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_transformers_reads_the_same_ids(folder: Path, unigram: SubwordTokenizer) -> None:
    theirs = TheirTokenizer.from_pretrained(folder, split_special_tokens=True)
    for text in TEXTS[:-1]:
        assert theirs(text)["input_ids"] == [*unigram.encode(text), 1], text
        assert theirs(text_target=text)["input_ids"] == [*unigram.encode(text), 1], text
        assert theirs.decode(unigram.encode(text)) == text


def test_our_reader_gives_the_same_ids(folder: Path, unigram: SubwordTokenizer) -> None:
    marian = load_tokenizer(folder)
    assert marian.encode_batch(TEXTS) == unigram.encode_batch(TEXTS)
    assert marian.encode_target_batch(TEXTS) == unigram.encode_batch(TEXTS)
    assert marian.decode_batch(unigram.encode_batch(TEXTS)) == TEXTS
    assert marian.vocab_size == unigram.vocab_size
    assert (marian.pad_id, marian.eos_id, marian.unk_id, marian.bos_id) == (0, 1, 2, 0)


def test_decode_skips_special_ids(folder: Path, unigram: SubwordTokenizer) -> None:
    marian = load_tokenizer(folder)
    assert marian.decode([0, *marian.encode("the dog"), 1, 0]) == "the dog"


def test_a_language_code_is_one_token(folder: Path) -> None:
    vocabulary = json.loads((folder / "vocab.json").read_text())
    vocabulary[">>deu<<"] = size = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    marian = load_tokenizer(folder)
    assert marian.encode(">>deu<< the dog") == [size, *marian.encode("the dog")]
    assert marian.encode(">>xyz<< the dog")[0] == marian.unk_id


def test_sides_may_have_separate_vocabularies(folder: Path) -> None:
    vocabulary = json.loads((folder / "vocab.json").read_text())
    moved = {token: i if i < 4 else i + 1 for token, i in vocabulary.items()}
    (folder / "target_vocab.json").write_text(json.dumps(moved))
    marian = load_tokenizer(folder)
    (source,), (target,) = marian.encode_batch(["the dog"]), marian.encode_target_batch(["the dog"])
    assert target == [i + 1 for i in source]
    assert marian.decode(target) == "the dog"


def test_saving_copies_the_files(folder: Path, tmp_path: Path) -> None:
    load_tokenizer(folder).save(tmp_path / "copy")
    assert load_tokenizer(tmp_path / "copy").encode("the dog") == load_tokenizer(folder).encode(
        "the dog"
    )


def test_only_unigram_can_be_written(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(sentences(20), TokenizerConfig(kind="char"))
    with pytest.raises(UnsupportedError, match="a BPE tokenizer cannot be written"):
        write_sentencepiece(tokenizer, tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("target.spm", None, "target.spm: missing; a Marian tokenizer needs it"),
        ("target.spm", b"nonsense", "target.spm: is not a SentencePiece model"),
        ("vocab.json", b"[1]", "vocab.json: must hold one JSON object, not a list"),
        ("vocab.json", b'{"<pad>": 0, "</s>": 1}', "vocab.json: has no <unk>"),
    ],
)
def test_damaged_folders_are_named(
    folder: Path, name: str, content: bytes | None, message: str
) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        load_tokenizer(folder)
