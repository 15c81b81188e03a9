"""Masking: the share of selected tokens, their replacements, and reproducibility by key."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.config import build_config
from outrider.data.config import MaskConfig, PrepareConfig, TokenizerConfig
from outrider.data.labels import Masking
from outrider.data.plan import Cursor
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared
from outrider.data.shards import Ragged
from outrider.data.tokenizer_training import train_tokenizer
from outrider.errors import ConfigError
from outrider.text.tokenizer import load_tokenizer
from outrider.text.tokenizer.vocabulary import add_mask
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.batches import BatchStream, valid_batches

WORDS, MASK = 40, 4
SPECIAL = frozenset({0, 1, 2, 3, MASK})


def ragged(lengths: list[int], seed: int) -> Ragged:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.random.default_rng(seed).integers(0, WORDS, offsets[-1]).astype(np.int32)
    return Ragged(flat, offsets)


def masking(seed: int = 0, **changes: float) -> Masking:
    return Masking(MaskConfig(**changes), MASK, SPECIAL, WORDS, seed)


@given(
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=9),
    share=st.floats(0.01, 0.9),
    seed=st.integers(0, 2**31),
    block=st.integers(0, 5),
    epoch=st.integers(0, 5),
)
def test_which_tokens_are_selected(
    lengths: list[int], share: float, seed: int, block: int, epoch: int
) -> None:
    text = ragged(lengths, seed)
    hide = masking(seed, share=share)
    shown, asked = hide(text, block, epoch)
    again = masking(seed, share=share)(text, block, epoch)
    assert np.array_equal(shown, again[0])
    assert np.array_equal(asked, again[1])
    chosen = asked != IGNORED
    assert np.array_equal(asked[chosen], text.flat[chosen])
    assert np.array_equal(shown[~chosen], text.flat[~chosen])
    assert not np.isin(asked, list(SPECIAL)).any()
    assert not np.isin(shown[chosen], list(SPECIAL - {MASK})).any()
    for first, last in zip(text.offsets[:-1], text.offsets[1:], strict=True):
        free = int((~np.isin(text.flat[first:last], list(SPECIAL))).sum())
        wanted = min(free, max(1, round(share * free)))
        assert int(chosen[first:last].sum()) == wanted


@given(hidden=st.floats(0, 1), rest=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_how_selected_tokens_are_masked(hidden: float, rest: float, seed: int) -> None:
    random = (1 - hidden) * rest
    text = ragged([100] * 60, seed)
    shown, asked = masking(seed, share=0.5, hidden=hidden, random=random)(text, 0)
    chosen = asked != IGNORED
    count = int(chosen.sum())
    slack = 4 * (0.25 / count) ** 0.5 + 1e-9
    assert abs((shown[chosen] == MASK).mean() - hidden) <= slack
    changed = (shown != text.flat) & (shown != MASK)
    assert abs(changed.sum() / count - random * (1 - 1 / (WORDS - 5))) <= slack


def test_epochs_blocks_and_seeds_select_different_tokens() -> None:
    text = ragged([50] * 8, 0)
    found = [
        masking(seed)(text, block, epoch)[1]
        for seed, block, epoch in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    for other in found[1:]:
        assert not np.array_equal(found[0], other)


def test_bert_is_the_default() -> None:
    config = MaskConfig()
    assert (config.share, config.hidden, config.random) == (0.15, 0.8, 0.1)
    with pytest.raises(ConfigError, match=r"hidden and random add up to 1\.3; lower them"):
        build_config(MaskConfig, {"hidden": 0.8, "random": 0.5})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("masking")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 90)
    data = {"folder": str(folder / "data"), "train": {"target": str(folder / "text.txt")}}
    data |= {"tokenizer": {"kind": "char", "vocab_size": 40}, "sequence_length": 22}
    data["valid_fraction"] = 0.2
    return prepare(build_config(PrepareConfig, data), task="language_model", progress=False)


def stream(prepared: Prepared, cursor: Cursor | None = None) -> BatchStream:
    tokenizer = add_mask(prepared.tokenizer)
    return BatchStream(
        prepared,
        tokens=256,
        seed=3,
        cursor=cursor,
        max_length=23,
        masking=Masking.of(tokenizer, seed=3),
    )


def test_rows_are_between_start_and_end(prepared: Prepared) -> None:
    tokenizer = add_mask(prepared.tokenizer)
    batches = [one.tensors for one, _ in zip(stream(prepared), range(30), strict=False)]
    batches += valid_batches(prepared, tokens=256, max_length=23, masking=Masking.of(tokenizer))
    short = 0
    for batch in batches:
        ids, keep, labels = (batch[n] for n in ("input_ids", "attention_mask", "labels"))
        length = keep.sum(1)
        short += int((length < ids.shape[1]).sum())
        assert ids.numel() <= 256
        assert (ids[:, 0] == tokenizer.bos_id).all()
        assert (ids.gather(1, length[:, None] - 1) == tokenizer.eos_id).all()
        assert (ids[keep == 0] == tokenizer.pad_id).all()
        outside = (keep == 0) | (ids == tokenizer.bos_id) | (ids == tokenizer.eos_id)
        assert (labels[outside] == IGNORED).all(), "no special token and no padding is asked for"
        asked = labels != IGNORED
        untouched = ids[~asked & ~outside]
        assert (untouched != tokenizer.mask_id).all()
        assert (ids[asked] == tokenizer.mask_id).any()
    assert short, "some rows are padded"


def test_a_resumed_stream_has_the_same_masks(prepared: Prepared) -> None:
    whole = [one for one, _ in zip(stream(prepared), range(40), strict=False)]
    cursors = [one.next_cursor for one in whole]
    assert cursors[-1].epoch > 0
    for stop in (0, 7, 25):
        again = stream(prepared, cursors[stop])
        for wanted, found in zip(whole[stop + 1 :], again, strict=False):
            for name, tensor in wanted.tensors.items():
                assert torch.equal(found.tensors[name], tensor), name


def test_validation_always_selects_the_same_tokens(prepared: Prepared) -> None:
    hide = Masking.of(add_mask(prepared.tokenizer))
    for tokens in (256, 64):
        first, second = (
            [b["labels"] for b in valid_batches(prepared, tokens=tokens, masking=hide)]
            for _ in range(2)
        )
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    asked = [
        sorted(
            label
            for b in valid_batches(prepared, tokens=tokens, masking=hide)
            for label in b["labels"].flatten().tolist()
        )
        for tokens in (256, 64)
    ]
    assert [x for x in asked[0] if x != IGNORED] == [x for x in asked[1] if x != IGNORED]


@pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])
def test_the_mask_is_an_additional_token(kind: str, tmp_path: Path) -> None:
    lines = ["the quick brown fox", "jumps over the lazy dog"] * 40
    config = build_config(TokenizerConfig, {"kind": kind, "vocab_size": 400})
    plain = train_tokenizer(lines, config, verbatim=True)
    masked = add_mask(plain)
    assert masked.mask_id == plain.vocab_size == masked.vocab_size - 1
    for text in ("the lazy fox", "a <mask> is six letters"):
        assert masked.encode(text) == plain.encode(text)
        assert masked.mask_id not in masked.encode(text)
    masked.save(tmp_path)
    again = add_mask(load_tokenizer(tmp_path))
    assert (again.mask_id, again.vocab_size) == (masked.mask_id, masked.vocab_size)
    assert again.encode("the lazy dog") == plain.encode("the lazy dog")


def test_a_tokenizer_of_two_files_cannot_have_a_mask() -> None:
    with pytest.raises(ConfigError, match=r"data\.tokenizer\.folder: a masked_lm needs"):
        add_mask(object())  # type: ignore[arg-type]
