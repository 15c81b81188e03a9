"""Distillation: targets equal greedy output, also after a killed run is resumed."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from outrider.cli.main import build_app, run
from outrider.data import prepare as prepare_module
from outrider.data.config import PrepareConfig
from outrider.data.prepared import Prepared, open_prepared
from outrider.decoding import Request, decode
from outrider.errors import ConfigError, DataError
from outrider.jobs import distill as distill_module
from outrider.jobs import folder as folder_module
from outrider.jobs import teacher as teacher_module
from outrider.jobs.distill import distill
from outrider.jobs.teacher import choose_by_consensus
from outrider.runtime import load
from outrider.runtime.options import decode_settings
from outrider.torch.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig
from outrider.torch.training.batches import BatchStream
from tests.helpers.letters import SIZE, save, save_corpus, save_translator

BLOCK = 16


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of several blocks and a model with its vocabulary that sometimes emits `eos`."""
    monkeypatch.setattr(prepare_module, "BLOCK_ROWS", BLOCK)
    prepared = save_corpus(tmp_path, lines=60, valid_rows=5)
    save_translator(prepared, tmp_path / "model")
    return tmp_path


def interrupt(*_, **__) -> None:
    raise KeyboardInterrupt


def rows(prepared: Prepared, split: str, columns: list[str]) -> list[tuple]:
    tables = [
        pq.read_table(prepared.folder / shard.name, columns=columns)
        for shard in prepared.manifest.splits[split].shards
    ]
    return [tuple(row[c] for c in columns) for table in tables for row in table.to_pylist()]


def distilled(folder: Path, name: str = "out", **options) -> Prepared:
    return distill(folder / "model", folder / "prepared", folder / name, progress=False, **options)


def test_targets_equal_greedy_output_of_each_source(folder: Path) -> None:
    found = distilled(folder)
    model = load(folder / "model")
    config = decode_settings(model.defaults, {})
    for split in ("train", "valid"):
        wanted, endless = [], 0
        for text, ids in rows(open_prepared(folder / "prepared"), split, ["source", "source_ids"]):
            limit = min(3 * len(ids) + 30, 31)
            request = Request(source=[*ids, model.backend.eos], max_new_tokens=limit)
            ((answer,),) = decode(model.backend, [request], config)
            endless += answer.finish != "eos"
            if answer.finish == "eos":
                target = model.tokenizer.decode(answer.tokens).strip()
                wanted.append((text, ids, len(ids), target, list(answer.tokens)))
        columns = ["source", "source_ids", "source_length", "target", "target_ids"]
        assert rows(found, split, columns) == wanted
        dropped = found.manifest.splits[split].dropped
        assert sum(one.count for one in dropped.values()) == endless
        assert found.manifest.splits[split].rows_read == len(wanted) + endless
    assert 0 < sum(one.count for one in found.manifest.splits["train"].dropped.values()) < 55
    lengths = {len(ids) for (ids,) in rows(found, "train", ["target_ids"])}
    assert len(lengths) > 2, "a model that always says the same tests nothing"


def test_consensus_chooses_the_most_similar(folder: Path) -> None:
    found = distilled(folder, strategy="beam", beams=3, n_best=3, consensus=True)
    likeliest = distilled(folder, "likeliest", strategy="beam", beams=3)
    model = load(folder / "model")
    config = decode_settings(model.defaults, {"strategy": "beam", "beams": 3, "n_best": 3})
    for source, target in rows(found, "train", ["source_ids", "target_ids"]):
        limit = min(3 * len(source) + 30, 31)
        request = Request(source=[*source, model.backend.eos], max_new_tokens=limit)
        (answers,) = decode(model.backend, [request], config)
        ended = [answer.tokens for answer in answers if answer.finish == "eos"]
        texts = model.tokenizer.decode_batch(ended)
        assert tuple(target) == tuple(ended[choose_by_consensus(texts)])
    columns = ["target_ids"]
    assert rows(found, "train", columns) != rows(likeliest, "train", columns)
    with pytest.raises(ConfigError, match="n_best: is 1, but consensus needs several"):
        distilled(folder, "alone", consensus=True)
    with pytest.raises(DataError, match="was done differently"):
        distilled(folder, strategy="beam", beams=3, n_best=3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "beam", "beams": 2},
        {"strategy": "beam", "beams": 2, "length_penalty": 0.5},
    ],
)
def test_improbable_targets_are_dropped(folder: Path, options: dict[str, Any]) -> None:
    model = load(folder / "model")
    config = decode_settings(model.defaults, {**options, "scores": True})
    columns = ["source_ids", "target_ids"]

    def mean(source: list[int]) -> float:
        limit = min(3 * len(source) + 30, 31)
        request = Request(source=[*source, model.backend.eos], max_new_tokens=limit)
        ((answer,),) = decode(model.backend, [request], config)
        assert answer.score is not None
        count = len(answer.tokens) + 1
        return (
            answer.score * count ** options.get("length_penalty", 1.0 if options else 0.0) / count
        )

    everything = rows(distilled(folder, "all", **options), "train", columns)
    means = sorted(mean(source) for source, _ in everything)
    _, place = max((b - a, n) for n, (a, b) in enumerate(pairwise(means)))
    middle = (means[place] + means[place + 1]) / 2  # far from rounding errors
    kept = distilled(folder, "some", **options, min_score=middle)
    assert rows(kept, "train", columns) == [
        (source, target) for source, target in everything if mean(source) >= middle
    ]
    assert kept.manifest.splits["train"].dropped["the model was not sure of it"].count > 0
    with pytest.raises(DataError, match=r"all rows were dropped \(.*the model was not sure of it"):
        distilled(folder, "none", **options, min_score=0.0)


def test_the_folder_trains_and_records_its_origin(folder: Path) -> None:
    found = distilled(folder)
    stream = BatchStream(found, tokens=256, seed=0, max_length=31)
    assert set(next(iter(stream)).tensors) == {"input_ids", "attention_mask", "labels"}
    origin = found.manifest.origin
    assert origin is not None
    assert origin["decode"]["strategy"] == "greedy"
    assert len(origin["weights"]["model.safetensors"]) == 64
    names = {path.name for path in found.folder.iterdir()}
    shards = {shard.name for split in found.manifest.splits.values() for shard in split.shards}
    assert names == {*shards, "manifest.json", "tokenizer.json", "tokenizer_config.json"}
    assert len(found.manifest.splits["train"].shards) == 4
    assert not (folder / "out.partial").exists()


def test_a_killed_run_resumes_at_the_first_missing_shard(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = distilled(folder, "whole")
    decoded: list[int] = []
    original = teacher_module.decode_in_batches

    def counted(backend, requests, config, *, batch_tokens):
        if len(decoded) == 2:
            raise KeyboardInterrupt
        decoded.append(len(requests))
        return original(backend, requests, config, batch_tokens=batch_tokens)

    with monkeypatch.context() as patch:
        patch.setattr(teacher_module, "decode_in_batches", counted)
        with pytest.raises(KeyboardInterrupt):
            distilled(folder, batch_tokens=100)
    assert not (folder / "out").exists()
    (folder / "out.partial" / "train-00002.tmp").write_bytes(b"half a shard")

    decoded.clear()
    monkeypatch.setattr(
        teacher_module,
        "decode_in_batches",
        lambda *args, **kw: decoded.append(len(args[1])) or original(*args, **kw),
    )
    again = distilled(folder)
    assert decoded == [BLOCK, 7, 5], "only what was missing is decoded again"
    assert again.manifest.splits == whole.manifest.splits
    assert distilled(folder).reused


def test_another_model_cannot_resume(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(distill_module, "ShardWriter", interrupt)
        with pytest.raises(KeyboardInterrupt):
            distilled(folder)
    with pytest.raises(DataError, match=r"out\.partial: was done differently \(rows was null"):
        distilled(folder, rows=3)
    distilled(folder)
    with pytest.raises(DataError, match=r"out: was done differently \(decode was"):
        distilled(folder, strategy="sample")


def test_another_tokenizer_is_refused(folder: Path) -> None:
    path = folder / "model" / "tokenizer.json"
    values = json.loads(path.read_text())
    vocabulary = values["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(values))
    with pytest.raises(DataError, match=r"another tokenizer .* \(token \d+ is '[ab]' against"):
        distilled(folder)


def test_a_store_is_refused(folder: Path) -> None:
    fix = "got a URL of s3, but prepared folders must be on disk; mount the store, or copy it"
    with pytest.raises(ConfigError, match=f"out: {fix}"):
        distill(folder / "model", folder / "prepared", "s3://bucket/out")
    with pytest.raises(ConfigError, match=f"data: {fix}"):
        distill(folder / "model", Path("s3://bucket/prepared"), folder / "out")


def test_rows_limits_every_split(folder: Path) -> None:
    splits = distilled(folder, rows=BLOCK + 2).manifest.splits
    assert splits["train"].rows_read == BLOCK + 2
    assert splits["valid"].rows_read == 5
    with pytest.raises(ConfigError, match="rows: got 0"):
        distilled(folder, rows=0)


def test_a_language_model_continues_the_first_half_of_every_row(tmp_path: Path) -> None:
    dice = random.Random(0)
    (tmp_path / "text.txt").write_text("".join(dice.choices("abcd \n", k=400)))
    prepared = prepare_module.prepare(
        PrepareConfig.model_validate(
            {
                "folder": str(tmp_path / "prepared"),
                "root": str(tmp_path),
                "train": {"target": "text.txt"},
                "sequence_length": 22,
                "tokenizer": {"kind": "char", "vocab_size": 32},
            }
        ),
        task="language_model",
        progress=False,
    )
    torch.manual_seed(0)
    vocabulary = prepared.tokenizer.vocab_size
    model = LanguageModel(LanguageModelConfig(vocab_size=vocabulary, layers=1, **SIZE))
    save(model, prepared, tmp_path / "model")
    found = distilled(tmp_path, strategy="sample", temperature=0.7)
    model = load(tmp_path / "model")
    config = decode_settings(model.defaults, {"strategy": "sample", "temperature": 0.7})
    before, after = (rows(one, "train", ["target_ids"]) for one in (prepared, found))
    for number, ((old,), (new,)) in enumerate(zip(before, after, strict=True)):
        prompt = old[: len(old) // 2]
        request = Request(prompt=prompt, max_new_tokens=len(old) - len(prompt), seed=number)
        ((answer,),) = decode(model.backend, [request], config)
        end = [model.backend.eos] if answer.finish == "eos" else []
        assert new == [*prompt, *answer.tokens, *end]
    # Rows are cut at the end of the prompt, so epochs must not cut them again.
    labels = [
        tuple(x for x in row if x != -100)
        for batch in _epoch(found)
        for row in batch["labels"].tolist()
    ]
    assert sorted(labels) == sorted(tuple(new) for (new,) in after)
    with pytest.raises(DataError, match="was prepared for language_model, but"):
        _translator_on_text(tmp_path)


def _epoch(prepared: Prepared):
    for batch in BatchStream(prepared, tokens=64, seed=3, max_length=23):
        yield batch.tensors
        if batch.next_cursor.epoch:
            return


def _translator_on_text(folder: Path) -> None:
    tokenizer = open_prepared(folder / "prepared").tokenizer
    vocabulary = tokenizer.vocab_size
    config = Seq2SeqConfig(vocab_size=vocabulary, encoder_layers=1, decoder_layers=1, **SIZE)
    Seq2Seq(config).save_pretrained(folder / "translator")
    tokenizer.save(folder / "translator")
    distill(folder / "translator", folder / "prepared", folder / "no", progress=False)


def test_the_command_line(folder: Path) -> None:
    line = ["distill", f"{folder}/model", f"--data={folder}/prepared", f"--out={folder}/out"]
    result = CliRunner().invoke(build_app(), [*line, "--rows=5"])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == f"{folder}/out"
    assert "did not end" in result.stderr or "kept" in result.stderr
    assert run([*line, "--rows=6", "-q"]) == 2


def test_a_damaged_shard_is_not_distilled(folder: Path) -> None:
    shard = folder / "prepared" / "train-00000.parquet"
    raw = bytearray(shard.read_bytes())
    raw[50] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(DataError, match=r"train-00000\.parquet: changed since it was written"):
        distilled(folder)


@pytest.mark.parametrize("file", ["train-00000.parquet", "train-00001.done.json"])
def test_a_finished_shard_that_is_damaged_is_written_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    whole = distilled(folder, "whole")
    with monkeypatch.context() as patch:
        patch.setattr(distill_module, "_finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            distilled(folder)
    damaged = folder / "out.partial" / file
    damaged.write_bytes(damaged.read_bytes()[:-5])
    again = distilled(folder)
    assert again.manifest.splits == whole.manifest.splits
    open_prepared(again.folder, verify=True)


def test_a_kill_during_publishing_repeats_no_decoding(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "publish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            distilled(folder)
    monkeypatch.setattr(teacher_module, "decode_in_batches", None)
    distilled(folder)
