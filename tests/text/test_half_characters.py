"""Decoded text never contains incomplete characters, for any tokens in any chunks."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from outrider.data.config import TokenizerConfig
from outrider.data.tokenizer_training import train_tokenizer
from outrider.serving.api.responses import TextStream
from outrider.text.tokenizer import SubwordTokenizer, Tokenizer, load_tokenizer
from outrider.text.tokenizer.sentencepiece_export import write_sentencepiece
from tests.helpers.corpus import sentences

SPECIAL = ("<pad>", "</s>", "<unk>", "<s>")
KINDS = ["unigram", "bpe", "marian"]
HALF, WHOLE = "好".encode()[:2], "😀".encode()


def train(kind: str, *, verbatim: bool = False) -> SubwordTokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=450)  # type: ignore[arg-type]
    return train_tokenizer([f"{line}\n" for line in sentences(400)], config, verbatim=verbatim)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param != "marian":
        return train(request.param)
    folder = tmp_path_factory.mktemp("marian")
    write_sentencepiece(train("unigram"), folder)
    return load_tokenizer(folder)


def letters() -> dict[str, int]:
    """The byte alphabet of GPT-2's byte-level BPE."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    kept += range(ord("®"), ord("ÿ") + 1)
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(b): b for b in kept} | {chr(256 + n): b for n, b in enumerate(others)}


def bytes_of(tokenizer: Any) -> dict[int, bytes]:
    """The bytes each token adds to a text."""
    if not isinstance(tokenizer, SubwordTokenizer):
        names = tokenizer.names[1]
    else:
        names = tokenizer.pipeline.get_vocab(with_added_tokens=True)
    table = letters()
    found = {}
    for token, index in names.items():
        if token in SPECIAL:
            found[index] = b""
        elif token.startswith("<0x"):
            found[index] = bytes.fromhex(token[3:5])
        elif "Ġ" in names:
            found[index] = bytes(table[letter] for letter in token)
        else:
            found[index] = token.replace("▁", " ").encode()
    return found


def tokens_of(found: dict[int, bytes], raw: bytes) -> list[int]:
    """Single-byte tokens that spell `raw`."""
    single = {one: index for index, one in found.items() if len(one) == 1}
    return [single[bytes([byte])] for byte in raw]


def rows(found: dict[int, bytes]) -> st.SearchStrategy[list[int]]:
    """Token lists: bytes of whole characters, of parts of characters, and arbitrary tokens."""
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=3).map(str.encode)
    parts = st.builds(lambda raw, cut: raw[cut:], texts, st.integers(-3, 3)) | st.binary(max_size=3)
    written = (texts | parts).map(lambda raw: tokens_of(found, raw))
    some = st.lists(st.sampled_from(sorted(found)), max_size=2)
    return st.lists(written | some, max_size=6).map(lambda lists: [*chain(*lists)])


def whole_text(found: dict[int, bytes], ids: list[int]) -> str:
    return b"".join(found[i] for i in ids).decode("utf-8", "ignore")


def test_only_whole_characters_are_decoded(tokenizer: Tokenizer) -> None:
    found = bytes_of(tokenizer)

    @settings(max_examples=300)
    @given(rows(found))
    @example(tokens_of(found, b"a" + HALF))
    @example(tokens_of(found, HALF + WHOLE + HALF + b" a"))
    @example(tokens_of(found, b"\xff" + WHOLE + b"\xc0\x80\xed\xa0\x80" + WHOLE[1:]))
    def check(ids: list[int]) -> None:
        # Tokenizers treat spaces at both ends differently.
        assert tokenizer.decode(ids).split() == whole_text(found, ids).split()

    check()


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_no_delta_holds_half_a_character(kind: str) -> None:
    tokenizer = train(kind, verbatim=True)
    found = bytes_of(tokenizer)

    @settings(max_examples=300)
    @given(rows(found), st.lists(st.integers(1, 4), max_size=30))
    @example(tokens_of(found, WHOLE + b"a" + HALF + WHOLE), [1] * 30)
    def check(ids: list[int], sizes: list[int]) -> None:
        stream = TextStream(tokenizer, tokenizer.encode("a dog"))
        deltas, start = [], 0
        for size in [*sizes, len(ids)]:
            deltas.append(stream.add(ids[start : start + size]))
            start += size
        assert "".join(deltas) == whole_text(found, ids) == tokenizer.decode(ids)

    check()


def test_a_replacement_character_of_the_model_stays(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the \ufffd dog")
    assert tokenizer.decode(ids) == "the \ufffd dog"
    assert tokenizer.decode([*ids, *tokens_of(bytes_of(tokenizer), HALF)]) == "the \ufffd dog"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_added_tokens_are_decoded_as_before(kind: str, tmp_path: Path) -> None:
    tokenizer = train(kind)
    tokenizer.pipeline.add_tokens(["<mark> é"])
    tokenizer.pipeline.add_special_tokens([AddedToken("<hidden>", special=True)])
    number: Callable[[str], int] = tokenizer.pipeline.token_to_id
    ids = [*tokenizer.encode("the dog"), number("<mark> é"), number("<hidden>")]
    ids += tokenizer.encode("a cat")
    half = tokens_of(bytes_of(train(kind)), HALF)
    assert tokenizer.decode([*ids, *half]) == tokenizer.decode(ids)
    assert "<mark> é" in tokenizer.decode(ids)
