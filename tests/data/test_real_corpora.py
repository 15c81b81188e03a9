"""Real text of several scripts with every tokenizer, and a complete preparation."""

import gzip
from pathlib import Path

import pytest

from outrider.data.config import PrepareConfig, TokenizerConfig
from outrider.data.prepare import prepare
from outrider.data.tokenizer_training import train_tokenizer
from outrider.text.normalise import normalise
from outrider.torch.training.batches import BatchStream

pytestmark = [pytest.mark.corpus, pytest.mark.slow]


def lines(path: Path, count: int) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n") for line, _ in zip(file, range(count), strict=False)]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("language", ["zh", "cs"])
def test_unseen_sentences_are_decoded_unchanged(corpora: Path, language: str, kind: str) -> None:
    flores = corpora / "flores"
    config = TokenizerConfig(kind=kind, vocab_size=4000)  # type: ignore[arg-type]
    known = lines(flores / f"dev.{language}.gz", 1000)
    tokenizer = train_tokenizer(known + lines(flores / "dev.en.gz", 1000), config)
    unseen = [normalise(line) for line in lines(flores / f"devtest.{language}.gz", 1100)]
    rows = tokenizer.encode_batch(unseen)
    assert tokenizer.decode_batch(rows) == unseen
    assert not any(tokenizer.unk_id in row for row in rows)
    characters_a_token = sum(map(len, unseen)) / sum(map(len, rows))
    assert characters_a_token > (1.0 if language == "zh" else 2.2)


def test_multi30k(corpora: Path, tmp_path: Path) -> None:
    config = PrepareConfig.model_validate(
        {
            "folder": str(tmp_path / "prepared"),
            "root": str(corpora / "multi30k"),
            "train": {"source": "train.en.gz", "target": "train.de.gz"},
            "valid": {"source": "valid.en.gz", "target": "valid.de.gz"},
            "tokenizer": {"kind": "bpe", "vocab_size": 6000},
        }
    )
    prepared = prepare(config, progress=False)
    train, valid = (prepared.manifest.splits[name] for name in ("train", "valid"))
    assert train.rows_read == 29_000
    assert {reason: drop.count for reason, drop in train.dropped.items()} == {
        "duplicate": 3,
        "length ratio": 2,
    }
    assert (train.rows, valid.rows) == (28_995, 1_014)

    used = padded = 0
    for batch in BatchStream(prepared, tokens=4096, seed=1):
        labels = batch.tensors["labels"]
        used, padded = used + int((labels != -100).sum()), padded + labels.numel()
        if batch.next_cursor.epoch:
            break
    assert used == train.target_tokens + train.rows
    assert used / padded > 0.88
