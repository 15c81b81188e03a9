"""Runs that train a drafter or a CTC decoder for a finished model."""

import io
import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import outrider
from outrider.config import build_config
from outrider.data.config import PrepareConfig
from outrider.data.prepare import prepare
from outrider.data.prepared import open_prepared
from outrider.errors import ConfigError, DataError, ModelError
from outrider.jobs.distill import distill
from outrider.run_config import RunConfig
from outrider.torch.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig
from outrider.torch.training.log import read_log
from outrider.torch.training.run import train_run
from tests.helpers.letters import SIZE, save, save_corpus, save_translator

TRAIN = {
    "steps": 12,
    "batch_tokens": 256,
    "learning_rate": 0.01,
    "warmup": 4,
    "save_every": 4,
    "evaluate_every": 6,
    "average": 2,
    "log_every": 2,
    "device": "cpu",
}
DRAFTER = {"type": "drafter", "rank": 4, "block": 8, "train_block": 4, "candidates": 4}
CTC = {"type": "ctc", "layers": 1, "upsample": 3}
CTC_TRAIN = {"steps": 8, "evaluate_every": 8, "stop_metric": "bleu"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its corpus, and its translations of it."""
    folder = tmp_path_factory.mktemp("home")
    prepared = save_corpus(folder, lines=120, valid_rows=12)
    save_translator(prepared, folder / "model")
    (folder / "model" / "README.md").write_text("# echo\n\nMade up for a test.\n")
    (folder / "model" / "notes.bin").write_text("nothing a model needs")
    distill(folder / "model", folder / "prepared", folder / "distilled", progress=False)
    return folder


def side_decoder(
    home: Path,
    folder: Path,
    *,
    model: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    **changes: Any,
) -> RunConfig:
    values = {
        "name": "side_decoder",
        "folder": str(folder / "run"),
        "attribution": "Delta by echo.",
        "data": {"folder": str(home / "distilled")},
        "model": {"target": str(home / "model"), **(model or DRAFTER)},
        "train": {**TRAIN, **(train or {})},
    }
    return build_config(RunConfig, {**values, **changes})


def test_drafter_run_writes_all_files(home: Path, tmp_path: Path) -> None:
    config = side_decoder(
        home,
        tmp_path,
        train={"stop_metric": "tokens_per_round", "average_by": "best", "save_every": 6},
        data={"folder": str(home / "distilled"), "root": str(home)},
        evaluate={"source": "train.en", "reference": "train.de", "decode": {"mode": "tandem"}},
    )
    console = Console(record=True, file=io.StringIO(), width=200)
    folder = train_run(config, console=console)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (folder / name).read_bytes() == (home / "model" / name).read_bytes()
    assert not (folder / "notes.bin").exists()
    inside = {path.name for path in (folder / "drafter").iterdir()}
    assert inside == {"config.json", "model.safetensors", "run.yaml", "provenance.json"}

    texts = (home / "train.en").read_text().splitlines()[:9]
    model = outrider.load(folder)
    assert model.translate(texts, mode="tandem") == model.translate(texts)
    assert model.translate(texts) == outrider.load(home / "model").translate(texts)

    card = (folder / "README.md").read_text()
    assert card.startswith("# echo\n\nMade up for a test.\n\n## Drafter\n")
    assert "the model's own output (`outrider distill`, greedy)" in card
    assert "Delta by echo." in card
    assert "| validation tokens_per_round | " in card
    provenance = json.loads((folder / "drafter" / "provenance.json").read_text())
    assert provenance["distilled"]["weights"] == provenance["target"]["weights"]
    metrics = [r for r in read_log(tmp_path / "run" / "log.jsonl") if r["event"] == "evaluation"]
    assert [m["step"] for m in metrics] == [6, 12]
    assert all(1 <= m["tokens_per_round"] <= 5 for m in metrics)
    assert json.loads((tmp_path / "run" / "results.json").read_text())["scores"]["sentences"] == 120

    console = Console(record=True, file=io.StringIO(), width=200)
    train_run(config, console=console)
    assert "is trained already" in console.export_text()


def test_resuming_changes_nothing(home: Path, tmp_path: Path) -> None:
    """Anchors, known tokens and dropout are random; all generators continue after a resume."""
    model = {**DRAFTER, "dropout": 0.2}
    whole = train_run(side_decoder(home, tmp_path / "whole", model=model))
    train_run(side_decoder(home, tmp_path / "parts", model=model, train={"steps": 4}))
    # More frequent evaluation must not change the random numbers.
    parts = train_run(
        side_decoder(home, tmp_path / "parts", model=model, train={"evaluate_every": 2})
    )
    weights = "drafter/model.safetensors"
    assert (parts / weights).read_bytes() == (whole / weights).read_bytes()

    def losses(folder: str) -> list[tuple[int, float]]:
        log = read_log(tmp_path / folder / "run" / "log.jsonl")
        return [(r["step"], r["loss"]) for r in log if r["event"] == "update"]

    assert losses("parts") == losses("whole")


def test_a_target_that_changed_is_refused(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "model", tmp_path / "model")
    model = {**DRAFTER, "target": str(tmp_path / "model")}
    train_run(side_decoder(home, tmp_path, model=model, train={"steps": 4}))
    other = Seq2Seq(Seq2SeqConfig.from_pretrained(tmp_path / "model"))
    other.save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"model\.target: has other weights than when"):
        train_run(side_decoder(home, tmp_path, model=model))
    console = Console(record=True, file=io.StringIO(), width=400)
    train_run(
        side_decoder(home, tmp_path, model=model, train={"steps": 4}), restart=True, console=console
    )
    assert "which has other weights; a drafter learns more from" in console.export_text()


def test_a_drafter_of_a_language_model(tmp_path: Path) -> None:
    dice = random.Random(0)
    (tmp_path / "text.txt").write_text("".join(dice.choices("abcd \n", k=900)))
    data = {
        "folder": str(tmp_path / "prepared"),
        "root": str(tmp_path),
        "train": {"target": "text.txt"},
        "valid_fraction": 0.2,
        "sequence_length": 24,
        "tokenizer": {"kind": "char", "vocab_size": 32},
    }
    prepared = prepare(PrepareConfig.model_validate(data), task="language_model", progress=False)
    torch.manual_seed(0)
    size = {"vocab_size": prepared.tokenizer.vocab_size, "layers": 2, "max_positions": 25}
    save(LanguageModel(LanguageModelConfig(**size, **SIZE)), prepared, tmp_path / "model")
    console = Console(record=True, file=io.StringIO(), width=400)
    folder = train_run(
        side_decoder(tmp_path, tmp_path, data=data, train={"steps": 4}), console=console
    )
    assert "holds original text; a drafter learns more from" in console.export_text()
    model = outrider.load(folder)
    options = {"max_new_tokens": 9}
    assert model.generate("ab", mode="tandem", **options) == model.generate("ab", **options)


def test_the_shortlist_contains_the_most_frequent_tokens(home: Path, tmp_path: Path) -> None:
    folder = train_run(
        side_decoder(home, tmp_path, model={**DRAFTER, "shortlist": 5}, train={"steps": 4})
    )
    drafter = outrider.load(folder).backend.drafter
    prepared, counts = open_prepared(home / "distilled"), Counter()
    for block in range(len(prepared.reader("train").block_rows)):
        counts.update(prepared.reader("train").ids(block, "target_ids").flat.tolist())
    common = [token for token, _ in counts.most_common(4)]
    assert drafter.kept_V.tolist() == sorted([*common, prepared.tokenizer.eos_id])


@pytest.mark.parametrize("joint", [False, True])
def test_a_ctc_run_keeps_a_drafter_of_the_same_model(
    home: Path, tmp_path: Path, joint: bool
) -> None:
    drafted = train_run(side_decoder(home, tmp_path / "drafter", train={"steps": 4}))
    model = {**CTC, "joint": joint, "target": str(drafted)}
    console = Console(record=True, file=io.StringIO(), width=400)
    folder = train_run(side_decoder(home, tmp_path, model=model, train=CTC_TRAIN), console=console)
    before, after = ((one / "model.safetensors").read_bytes() for one in (drafted, folder))
    assert (before == after) is not joint
    assert (folder / "drafter").is_dir() is not joint
    assert ("train it again" in console.export_text()) is joint
    card = (folder / "README.md").read_text()
    assert "## Parallel decoder" in card
    assert ("trained jointly with the model" in card) is joint
    texts = ["ab", "dcb."]
    loaded = outrider.load(folder)
    assert len(loaded.translate(texts, mode="parallel")) == 2
    same = loaded.translate(texts) == outrider.load(home / "model").translate(texts)
    assert same or joint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {**DRAFTER, "target": None}}, r"model\.target: is required: the folder of"),
        ({"model": {**SIZE, "type": "seq2seq"}}, r"model\.target: has no effect on seq2seq"),
        ({"model": {**DRAFTER, "hidden_size": 8}}, r"model\.hidden_size: comes from the target"),
        ({"model": {**DRAFTER, "ranks": 8}}, r"model\.ranks: unknown key .*did you mean 'rank'"),
        ({"model": {**DRAFTER, "decay": 2.0}}, r"model\.decay: got 2\.0, expected above 0"),
        ({"model": {**CTC, "blank": 3}}, r"model\.blank: comes from the target"),
        ({"train": {"stop_metric": "bleu"}}, r"a drafter has no bleu; expected tokens_per_round"),
        (
            {"model": CTC, "train": {"stop_metric": "tokens_per_round"}},
            r"train\.stop_metric: only a drafter has tokens_per_round, not a ctc",
        ),
        (
            {"data": {"folder": "nowhere"}},
            r"data\.train: is required because nowhere does not exist",
        ),
    ],
)
def test_invalid_settings_are_refused(
    home: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train_run(side_decoder(home, tmp_path, **changes))


def test_settings_of_an_unused_corpus_are_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.valid_rows: has no effect without data\.train"):
        side_decoder(home, tmp_path, data={"folder": str(home / "distilled"), "valid_rows": 3})


def test_data_of_another_tokenizer_is_refused(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "distilled", tmp_path / "data")
    path = tmp_path / "data" / "tokenizer.json"
    values = json.loads(path.read_text())
    vocabulary = values["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(values))
    with pytest.raises(DataError, match="was prepared with another tokenizer than that of"):
        train_run(side_decoder(home, tmp_path, data={"folder": str(tmp_path / "data")}))


def test_a_missing_target_is_named(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="gone: no such folder"):
        train_run(side_decoder(home, tmp_path, model={**DRAFTER, "target": str(tmp_path / "gone")}))
