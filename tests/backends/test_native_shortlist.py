"""Shortlists: the core scores only the tokens listed for the source; all others are excluded."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider.backends.native import NativeBackend
from outrider.decoding import DecodeConfig, Request, decode
from outrider.decoding.queries import Argmax, Forbidden, Logits, TopK
from outrider.errors import ConfigError, InputError, ModelError
from outrider.formats.readers.bergamot import LEX_MAGIC, Shortlist, read_shortlist
from outrider.runtime import Translator, load
from outrider.torch.models.folder import parts_of
from tests.helpers import bergamot_tiny, native_tiny

SOURCES = [[3, 4, 5, 1], [6, 1], [9, 8, 7, 6, 5, 4, 1]]
KINDS = ["marian", "ssru", "gelu"]


def shortlist(words: int, *, shared: bool = False) -> Shortlist:
    """Three listed tokens for every source token."""
    offsets = np.arange(words + 1, dtype=np.uint64) * 3
    listed = np.array([(7 * n + 3 * n * n) % words for n in range(3 * words)], np.uint32)
    return Shortlist(4, offsets, listed, shared)


def backends(kind: str, dtype: str = "int8", threads: int = 1) -> tuple[NativeBackend, ...]:
    """Return a backend with a shortlist and one without."""
    model = native_tiny.build(kind)
    with torch.no_grad():  # with plain random weights every text is one repeated token
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "tokens" not in name:
                weight.mul_(4.0)
    parts = parts_of(model, native_tiny.build_drafter(model))
    listed = shortlist(model.config.vocab_size)
    return (
        NativeBackend(parts, dtype=dtype, threads=threads, shortlist=listed),
        NativeBackend(parts, dtype=dtype, threads=threads),
    )


def masked(core: NativeBackend, scores: Any) -> Any:
    """Set the scores of tokens that are not listed to minus infinity."""
    assert core.shortlist is not None
    out = np.full_like(scores, -np.inf)
    for row, source in enumerate(SOURCES):
        listed = core.shortlist.listed(source)
        out[row][..., listed] = scores[row][..., listed]
    return out


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_answers_equal_those_of_masked_scores(kind: str, dtype: str) -> None:
    short, whole = backends(kind, dtype)
    tokens = [[1, 7, 2], [5, 3, 8], [2, 2, 6]]
    scores = whole.extend(tokens, whole.encode(SOURCES, capacity=9), Logits())
    expected = masked(short, scores)
    found = short.extend(tokens, short.encode(SOURCES, capacity=9), Logits())
    listed = np.isfinite(expected)
    assert np.array_equal(found[listed], expected[listed])
    assert (found[~listed] < -1e38).all()
    asked = short.extend(tokens, short.encode(SOURCES, capacity=9), Argmax(Forbidden()))
    assert asked.tokens == expected.argmax(-1).tolist()
    never = sorted({word for row in asked.tokens for word in row})[:2]
    expected[..., never] = -np.inf
    other = Argmax(Forbidden(always=never))
    asked = short.extend(tokens, short.encode(SOURCES, capacity=9), other)
    assert asked.tokens == expected.argmax(-1).tolist()
    best = short.extend(tokens, short.encode(SOURCES, capacity=9), TopK(3), last=True)
    order = np.argsort(-masked(short, scores)[:, -1], axis=-1, kind="stable")[:, :3]
    assert np.array_equal(np.array(best.tokens), order)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_the_same_alone_batched_and_in_tandem(kind: str, threads: int) -> None:
    short, whole = backends(kind, threads=threads)
    rows = [Request(source=source, max_new_tokens=25, seed=0) for source in SOURCES]
    plain = DecodeConfig(suppress=(0, 1))
    together = [one[0].tokens for one in decode(short, rows, plain)]
    assert together == [decode(short, [row], plain)[0][0].tokens for row in rows]
    drafted = decode(short, rows, DecodeConfig(mode="tandem", draft_tokens=4, suppress=(0, 1)))
    assert together == [one[0].tokens for one in drafted]
    assert together != [one[0].tokens for one in decode(whole, rows, plain)]
    assert short.shortlist is not None
    for source, text in zip(SOURCES, together, strict=True):
        assert set(text) <= set(short.shortlist.listed(source))


def test_the_size_of_a_state_includes_its_shortlists() -> None:
    short, whole = backends("marian")
    sizes = [core.encode(SOURCES, capacity=9).nbytes for core in (short, whole)]
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ([[1], [2]], "one shortlist for each source"),
        ([[1], [2], []], "not empty"),
        ([[1], [2, 2], [3]], "must be ascending"),
        ([[1], [3, 2], [3]], "must be ascending"),
        ([[1], [2], [99]], "token 99 is not one"),
        ([[1], [2], [-1]], "token -1 is not one"),
    ],
)
def test_invalid_shortlists_are_refused(listed: list[list[int]], message: str) -> None:
    _, whole = backends("marian")
    with pytest.raises(ValueError, match=message):
        whole.core.encode(SOURCES, [9] * 3, False, False, listed)


def test_a_language_model_has_no_shortlist() -> None:
    core = NativeBackend(parts_of(native_tiny.build("text")), shortlist=shortlist(23))
    with pytest.raises(InputError, match="has no source"):
        core.encode([[]], capacity=4)


def write_shortlist(path: Path, listed: Shortlist) -> None:
    head = struct.pack(
        "<6Q", LEX_MAGIC, 0, listed.frequent, 3, len(listed.offsets), len(listed.tokens)
    )
    path.write_bytes(head + listed.offsets.tobytes() + listed.tokens.tobytes())


def test_a_folder_with_a_shortlist(tmp_path: Path) -> None:
    words = len(bergamot_tiny.write_folder(tmp_path)["Wemb"])
    with pytest.raises(ConfigError, match=r"^shortlist: .* holds no lex\.\*\.bin"):
        load(tmp_path, shortlist=True)
    write_shortlist(tmp_path / "lex.50.50.xxyy.s2t.bin", shortlist(words))
    loaded = load(tmp_path, shortlist=True, backend="native")
    assert isinstance(loaded, Translator)
    texts = bergamot_tiny.TEXT[:4]
    expected = shortlist(words, shared=True)
    for text, found in zip(texts, loaded.results(texts, max_new_tokens=12), strict=True):
        source = [*loaded.tokenizer.encode(text), 0]
        assert set(found[0].tokens) <= set(expected.listed(source))
    with pytest.raises(ConfigError, match="is for backend native"):
        load(tmp_path, shortlist=True, backend="torch")
    for given, limited in ((None, True), (False, False)):
        backend = load(tmp_path, shortlist=given, backend="native").backend
        assert isinstance(backend, NativeBackend)
        assert (backend.shortlist is not None) is limited
    load(tmp_path, backend="torch")


def test_listed_tokens() -> None:
    offsets, words = np.array([0, 2, 2, 5], np.uint64), np.array([9, 4, 8, 1, 9], np.uint32)
    assert Shortlist(2, offsets, words, shared=False).listed([0]) == [0, 1, 4, 9]
    assert Shortlist(2, offsets, words, shared=False).listed([1, 1]) == [0, 1]
    assert Shortlist(1, offsets, words, shared=True).listed([2, 0, 7]) == [0, 1, 2, 4, 8, 9]


def lying(**changes: int) -> bytes:
    """Return the header of a shortlist file with some values replaced."""
    numbers = {"magic": LEX_MAGIC, "sum": 0, "frequent": 1, "best": 3, "offsets": 4, "words": 5}
    return struct.pack("<6Q", *(numbers | changes).values())


OFFSETS, WORDS = struct.pack("<4Q", 0, 2, 2, 5), struct.pack("<5I", 9, 4, 8, 1, 9)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "ends too soon"),
        (lying(magic=1) + OFFSETS + WORDS, "magic number is wrong"),
        (lying(offsets=2**61) + OFFSETS + WORDS, "length differs from"),
        (lying(words=2**62) + OFFSETS + WORDS, "length differs from"),
        (lying() + OFFSETS + WORDS[:-1], "length differs from"),
        (lying() + struct.pack("<4Q", 0, 3, 2, 5) + WORDS, "not in order"),
        (lying() + struct.pack("<4Q", 0, 2, 2, 6) + WORDS, "not in order"),
        (lying(offsets=0, words=0), "not in order"),
        (lying() + OFFSETS + struct.pack("<5I", 9, 4, 10, 1, 9), "beyond the model.s 10"),
        (lying(frequent=2**40) + OFFSETS + WORDS, "beyond the model.s 10"),
        (lying(frequent=0) + OFFSETS + WORDS, "no frequent tokens"),
    ],
)
def test_an_invalid_file_is_refused(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "lex.bin"
    path.write_bytes(lying() + OFFSETS + WORDS)
    assert read_shortlist(path, vocab_size=10, shared=False).frequent == 1
    path.write_bytes(raw)
    with pytest.raises(ModelError, match=message):
        read_shortlist(path, vocab_size=10, shared=False)
