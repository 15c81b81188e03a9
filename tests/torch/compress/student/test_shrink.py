"""Smaller models: kept parts compute the same, and every result can be saved."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.cli.main import run
from outrider.config import build_config
from outrider.data.config import PrepareConfig, TokenizerConfig
from outrider.data.prepare import prepare
from outrider.data.prepared import open_prepared
from outrider.data.tokenizer_training import train_tokenizer
from outrider.errors import ConfigError, ModelError
from outrider.runtime import load
from outrider.text.tokenizer import load_tokenizer
from outrider.text.tokenizer.sentencepiece_export import write_sentencepiece
from outrider.text.tokenizer.vocabulary import cut_tokenizer
from outrider.torch.compress.student import shrink
from outrider.torch.models import load_model
from outrider.torch.training.batches import valid_batches
from tests.helpers import tiny

LETTERS = "abcdefghinorstu"
WORDS = ["cat", "dog", "bird", "tree", "house", "sees", "sings", "other", "the", "a", "in", "and"]
COMMON = [WORDS[:4], WORDS[6:9]]
"""The most frequent words of sources and targets."""


def texts(count: int, words: list[str]) -> list[str]:
    return [" ".join(words[(n * 7 + at * 3) % len(words)] for at in range(3)) for n in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large") / "model"
    others = [
        a + b + c + d for a in "bdt" for b in "aio" for c in "nrs" for d in ("tu", "ge", "ho")
    ]
    lines = [*texts(300, WORDS), *LETTERS, *texts(300, others)]
    tokenizer = train_tokenizer(iter(lines), TokenizerConfig(kind="unigram", vocab_size=400))
    write_sentencepiece(tokenizer, folder)
    tiny.marian_like(vocab_size=tokenizer.vocab_size + 2, decoder_layers=3).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for side, words in zip(("source", "target"), COMMON, strict=True):
        (folder / side).write_text("\n".join(texts(60, words)) + "\n")
    values = {
        "folder": str(folder / "prepared"),
        "train": {side: [str(folder / side)] for side in ("source", "target")},
        "valid_rows": 4,
        "tokenizer": {"folder": str(model)},
        "clean": {"drop_duplicates": False},
    }
    config = build_config(PrepareConfig, values, prefix="data.")
    return prepare(config, task="translation", progress=False).folder


def count(model: Path) -> tuple[list[int], list[int]]:
    tokenizer = load_tokenizer(model)
    found = []
    for encode, words in zip(
        (tokenizer.encode_batch, tokenizer.encode_target_batch), COMMON, strict=True
    ):
        ids = torch.tensor([one for row in encode(texts(60, words)) for one in row])
        found.append(torch.bincount(ids, minlength=tokenizer.vocab_size).tolist())
    return found[0], found[1]


def least(model: Path) -> int:
    """Number of special tokens and single letters of the source, plus one."""
    names = load_tokenizer(model).names[0]  # type: ignore[attr-defined]
    return 4 + sum(len(name.removeprefix("▁")) <= 1 or name.startswith("<0x") for name in names)


def test_kept_parts_compute_the_same(model: Path, data: Path, tmp_path: Path) -> None:
    words = least(model) + 8
    shrink(model, tmp_path / "small", words=words, data=data)
    large, small = load_model(model), load_model(tmp_path / "small")
    tokenizer = load_tokenizer(model)
    cut = cut_tokenizer(tokenizer, *count(model), words=words)
    kept = [*cut.target, tokenizer.vocab_size, tokenizer.vocab_size + 1]
    assert small.config.vocab_size == words + 2 < large.config.vocab_size
    cut_text = load_tokenizer(tmp_path / "small").encode_batch(["the dog sings in a tree"])[0]
    said = [small.config.decoder_start_token_id, *range(3, words, 5)]
    source_1S = torch.tensor([[*cut_text, small.config.end_tokens[0]]])
    old_source_1S = torch.tensor([[cut.source[index] for index in source_1S[0]]])
    old_said_1T = torch.tensor([[kept[index] for index in said]])
    with torch.inference_mode():
        hidden = small.decode(torch.tensor([said]), small.encode(source_1S))
        before = large.decode(old_said_1T, large.encode(old_source_1S))
        torch.testing.assert_close(hidden, before, rtol=0, atol=1e-6)
        torch.testing.assert_close(
            small.logits(hidden), large.logits(before)[..., kept], rtol=0, atol=1e-5
        )


@settings(max_examples=60)
@given(text=st.text(LETTERS + " ", min_size=1, max_size=30), more=st.integers(0, 8))
def test_every_text_can_still_be_encoded_and_decoded(model: Path, text: str, more: int) -> None:
    tokenizer = load_tokenizer(model)
    counts = [[1] * tokenizer.vocab_size, [1] * tokenizer.vocab_size]
    cut = cut_tokenizer(tokenizer, *counts, words=least(model) + more).tokenizer
    assert cut.unk_id not in cut.encode(text)
    (ids,) = cut.encode_target_batch([text])
    assert cut.decode(ids) == " ".join(text.split())


def test_common_words_stay_whole_on_their_side(model: Path, tmp_path: Path) -> None:
    cut = cut_tokenizer(load_tokenizer(model), *count(model), words=least(model) + 3).tokenizer
    (source,), (target,) = cut.encode_batch(["cat dog"]), cut.encode_target_batch(["sings the"])
    assert (len(source), len(target)) == (2, 2)
    assert len(cut.encode("sings")) > 1
    cut.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.encode_batch(["cat house"]) == cut.encode_batch(["cat house"])
    assert again.encode_target_batch(["the dog"]) == cut.encode_target_batch(["the dog"])


def test_vocabulary_of_another_model(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rows equal those of a model cut by count, however the vocabulary was chosen."""
    counted, like = tmp_path / "counted", tmp_path / "like"
    shrink(model, counted, words=least(model) + 8, data=data)
    shrink(model, like, like=counted)
    ours, theirs = load_model(like).state_dict(), load_model(counted).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())
    names = [load_tokenizer(path).names for path in (like, counted)]  # type: ignore[attr-defined]
    assert names[0] == names[1]
    assert run(["shrink", str(counted), "--like", str(model), "--out", str(tmp_path / "x")]) == 2
    assert "which is no word here" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="words: has no effect with like"):
        shrink(model, tmp_path / "x", words=50, like=counted, data=data)


def test_layers_and_words_through_the_command_line(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = least(model) + 8
    given: list[Any] = ["shrink", model, "--data", data, "--words", words, "--decoder", "0,2"]
    assert run([*map(str, given), "--out", str(tmp_path / "small")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "small")
    small, large = load_model(tmp_path / "small"), load_model(model)
    assert small.config.decoder_layers == 2
    ours, theirs = small.decoder.blocks[1].state_dict(), large.decoder.blocks[2].state_dict()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight)
    assert load(tmp_path / "small").translate(["the cat sees a dog"], max_new_tokens=4)


def test_least_important_layer_is_removed_first(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three layers, one adds nothing and one is trained on the pairs."""
    large, prepared = load_model(model), open_prepared(data)
    batch = next(valid_batches(prepared, tokens=512, max_length=64))
    with torch.no_grad():
        for layers, idle in ((large.encoder, 0), (large.decoder, 1)):
            for residual in layers.blocks[idle].children():
                for linear in (getattr(residual, name, None) for name in ("out", "down")):
                    if isinstance(linear, torch.nn.Linear):
                        linear.weight.zero_()
                        linear.bias.zero_()
    optimizer = torch.optim.Adam(
        [weight for n in (0, 2) for weight in large.decoder.blocks[n].parameters()], lr=0.01
    )
    for _ in range(30):
        optimizer.zero_grad()
        large(**batch).loss.backward()
        optimizer.step()
    large.eval().save_pretrained(tmp_path / "large")
    load_tokenizer(model).save(tmp_path / "large")
    given: list[Any] = ["shrink", tmp_path / "large", "--data", data, "--out", tmp_path / "small"]
    assert run([*map(str, given), "--encoder-layers", "1", "--decoder-layers", "2"]) == 0
    assert "without layer 1 of the decoder: loss" in capsys.readouterr().err
    small = load_model(tmp_path / "small")
    assert (small.config.encoder_layers, small.config.decoder_layers) == (1, 2)
    assert large(**batch).loss * 1.01 > small(**batch).loss


def test_fewer_units_through_the_command_line(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = ["shrink", model, "--data", data, "--feedforward", 16]
    assert run([*map(str, given), "--out", str(tmp_path / "small")]) == 0
    assert "decoder.blocks.2.feedforward: 16 units" in capsys.readouterr().err
    small, large = load_model(tmp_path / "small"), load_model(model)
    assert (small.config.intermediate_size, large.config.intermediate_size) == (16, 24)
    batch = next(valid_batches(open_prepared(data), tokens=512, max_length=64))
    assert abs(small(**batch).loss - large(**batch).loss) < 0.1
    assert load(tmp_path / "small").translate(["the cat sees a dog"], max_new_tokens=4)


@pytest.mark.parametrize("cut", [False, True], ids=["all words", "cut"])
def test_reversing_swaps_the_vocabularies(
    model: Path, data: Path, tmp_path: Path, cut: bool
) -> None:
    """Reversed twice, the weights are the original ones, except the output bias."""
    words = {"words": least(model) + 8, "data": data} if cut else {"positions": 64}
    shrink(model, tmp_path / "there", **words)  # type: ignore[arg-type]
    for start, end in (("there", "back"), ("back", "again")):
        given = ["shrink", str(tmp_path / start), "--reverse", "--out", str(tmp_path / end)]
        assert run(given) == 0
    there, back, again = (load_model(tmp_path / name) for name in ("there", "back", "again"))
    before, after = there.state_dict(), again.state_dict()
    assert after.keys() == before.keys()
    for name, weight in before.items():
        assert torch.equal(after[name], weight) or name == "logits_bias"
    assert back.logits_bias is not None
    assert torch.count_nonzero(back.logits_bias) <= 1
    read, written = (load_tokenizer(tmp_path / name) for name in ("there", "back"))
    text = "the dog sings in a tree"
    (ids,) = read.encode_target_batch([text])
    assert ids == written.encode(text)
    assert written.encode_target_batch([text]) == [read.encode(text)]
    with torch.inference_mode():
        reads = back.source_tokens if cut else back.tokens
        assert torch.equal(reads(torch.tensor(ids)), there.tokens(torch.tensor(ids)))
    assert load(tmp_path / "back").translate([text], max_new_tokens=4)


def test_fewer_positions(model: Path, tmp_path: Path) -> None:
    shrink(model, tmp_path / "small", positions=16)
    small, large = load_model(tmp_path / "small"), load_model(model)
    assert (small.config.max_positions, small.config.longest_source) == (16, 16)
    ids = torch.arange(3, 12)[None]
    torch.testing.assert_close(small.encode(ids), large.encode(ids))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"words": 100}, "data: is required to choose which words"),
        ({"layers": {"decoder": 2}}, "data: is required to choose which layers"),
        ({"feedforward": 8}, "data: is required to choose which units"),
        ({"positions": 0}, "positions: got 0, expected 1 to 1024, which are all"),
        ({"data": "."}, "words: is missing"),
        ({"layers": {"decoder": [7]}}, "keep_layers.decoder: got"),
    ],
)
def test_incomplete_arguments_are_refused(
    model: Path, tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        shrink(model, tmp_path / "small", **values)
    assert not (tmp_path / "small").exists()


def test_too_few_words_and_another_tokenizer_are_refused(model: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(model)
    for words in (3, tokenizer.vocab_size + 1):
        with pytest.raises(ConfigError, match=f"words: got {words}, expected over"):
            cut_tokenizer(tokenizer, *count(model), words=words)
    trained = train_tokenizer(iter(texts(99, WORDS)), TokenizerConfig(kind="bpe", vocab_size=300))
    with pytest.raises(ConfigError, match="words: only words of SentencePiece"):
        cut_tokenizer(trained, [], [], words=9)
    with pytest.raises(ModelError, match="exists already"):
        shrink(model, tmp_path, layers={"decoder": [0]})


def test_int4_feedforward_requires_data(model: Path, data: Path, tmp_path: Path) -> None:
    for options, said in (
        ({"int4": ["feedforward"]}, "data: is required to round"),
        ({"int4": ["feedforward"], "words": 99, "data": data}, "feedforward is rounded after"),
        ({"int4": ["heads"]}, "int4: got 'heads', expected embeddings or feedforward"),
    ):
        with pytest.raises(ConfigError, match=said):
            shrink(model, tmp_path / "small", **options)
    assert run(["shrink", str(model), "--int4", "embeddings", "--out", str(tmp_path / "b")]) == 2
