"""Whole runs, from text files to a model folder that loads and translates."""

import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import outrider
from outrider.config import build_config
from outrider.decoding import DecodeConfig
from outrider.errors import ConfigError, DataError, ModelError
from outrider.evaluation.metrics import score_translations
from outrider.run_config import RunConfig
from outrider.runtime import Translator
from outrider.torch.training.folder import RunFolder
from outrider.torch.training.log import read_log
from outrider.torch.training.run import train_run

LETTERS = "abcdefgh"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    generator = random.Random(0)
    folder = tmp_path / "corpus"
    folder.mkdir()
    words = ["".join(generator.choices(LETTERS, k=generator.randint(1, 3))) for _ in range(9)]
    lines = [" ".join(generator.choices(words, k=generator.randint(1, 4))) for _ in range(300)]
    for name, part in (("train", lines), ("test", lines[:6])):
        (folder / f"{name}.en").write_text("".join(f"{line}\n" for line in part))
        (folder / f"{name}.de").write_text("".join(f"{line.upper()}\n" for line in part))
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    return folder


def translation(corpus: Path, *, train: dict[str, Any] | None = None, **changes: Any) -> RunConfig:
    data = {
        "folder": str(corpus / "prepared"),
        "root": str(corpus),
        "train": {"source": "train.en", "target": "train.de"},
        "valid_rows": 10,
        "tokenizer": {"kind": "char", "vocab_size": 64},
        "clean": {"drop_duplicates": False},
    }
    values = {
        "name": "shout",
        "folder": str(corpus / "run"),
        "attribution": "Made up for a test.",
        "data": data,
        "model": {**SIZE, "encoder_layers": 1, "decoder_layers": 1},
        "train": {**TRAIN, **(train or {})},
        "evaluate": {"source": "test.en", "reference": "test.de", "decode": {"beams": 2}},
    }
    return build_config(RunConfig, {**values, **changes})


SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "dropout": 0.0}
TRAIN = {
    "steps": 40,
    "batch_tokens": 512,
    "learning_rate": 0.01,
    "warmup": 10,
    "save_every": 10,
    "evaluate_every": 20,
    "stop_metric": "bleu",
    "average": 3,
    "log_every": 5,
    "device": "cpu",
}


def test_a_translation_run_writes_all_files(corpus: Path) -> None:
    folder = train_run(translation(corpus))
    run = folder.parent
    model = outrider.load(folder)
    assert isinstance(model.translate(["ab cd"])[0], str)
    assert {path.name for path in folder.iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "README.md",
        "run.yaml",
        "provenance.json",
    }
    assert (run / "curve.png").exists()
    losses = [record["loss"] for record in read_log(run / "log.jsonl") if "learning_rate" in record]
    assert losses[-1] < losses[0]

    result = json.loads((run / "results.json").read_text())
    assert result["scores"]["sentences"] == 6
    assert "tok:13a" in result["scores"]["bleu_signature"]
    assert result["training"]["averaged"] == [20, 30, 40]
    assert result["training"]["steps"] == 40
    assert len(result["corpus"]["files"][0]["sha256"]) == 64
    assert result["versions"]["outrider"]
    card = (folder / "README.md").read_text()
    assert "# shout" in card
    assert "Made up for a test." in card
    assert f"| bleu | {result['scores']['bleu']:.3f} |" in card
    assert r"nrefs:1\|case" in card, "a bare | would end the table's cell"


def test_a_language_model_run(corpus: Path) -> None:
    config = translation(
        corpus,
        model={"type": "language_model", **SIZE, "layers": 1},
        data={
            "folder": str(corpus / "prepared"),
            "root": str(corpus),
            "train": {"target": "text.txt"},
            "valid_fraction": 0.1,
            "sequence_length": 32,
            "tokenizer": {"kind": "char", "vocab_size": 64},
        },
        train={"stop_metric": "perplexity"},
        evaluate={"text": "text.txt", "tail": 0.1},
    )
    folder = train_run(config)
    result = json.loads((folder.parent / "results.json").read_text())
    text = (corpus / "text.txt").read_text()
    assert result["scores"]["characters"] == round(len(text) / 10)
    assert 0 < result["scores"]["nats_per_token"] < 3
    assert result["context"] == 33
    assert len(outrider.load(folder).generate("ab", max_new_tokens=5)) <= 5


def test_a_finished_run_is_not_trained_again(corpus: Path) -> None:
    config = translation(corpus, evaluate=None)
    folder = train_run(config)
    weights = (folder / "model.safetensors").read_bytes()
    log = (folder.parent / "log.jsonl").read_text()
    console = Console(record=True, file=io.StringIO())
    train_run(config, console=console)
    assert "is trained already" in console.export_text()
    assert (folder / "model.safetensors").read_bytes() == weights
    assert (folder.parent / "log.jsonl").read_text() == log


def test_changed_config_key_is_refused_until_restart(corpus: Path) -> None:
    train_run(translation(corpus, train={"steps": 10}, evaluate=None))
    changed = translation(corpus, train={"steps": 10, "learning_rate": 0.02}, evaluate=None)
    with pytest.raises(ConfigError, match=r"train\.learning_rate: differs from the run in .*run"):
        train_run(changed)
    train_run(changed, restart=True)
    log = read_log(corpus / "run" / "log.jsonl")
    assert [record["step"] for record in log if record["event"] == "update"] == [5, 10]


def test_run_folder_is_locked(corpus: Path) -> None:
    config = translation(corpus)
    with (
        RunFolder(Path(config.folder)).locked(),
        pytest.raises(ConfigError, match="folder: another process is training in"),
    ):
        train_run(config)


def test_a_missing_model_is_written_again_without_training(corpus: Path) -> None:
    config = translation(corpus, evaluate=None, train={"steps": 10})
    folder = train_run(config)
    weights = (folder / "model.safetensors").read_bytes()
    shutil.rmtree(folder)
    train_run(config)
    assert (folder / "model.safetensors").read_bytes() == weights


def test_more_steps_continue_a_run(corpus: Path) -> None:
    train_run(translation(corpus, train={"steps": 10}, evaluate=None))
    train_run(translation(corpus, train={"steps": 20}, evaluate=None))
    log = read_log(corpus / "run" / "log.jsonl")
    assert [record["step"] for record in log if record["event"] == "update"] == [5, 10, 15, 20]


def test_data_that_was_prepared_again_is_refused(corpus: Path) -> None:
    train_run(translation(corpus, train={"steps": 10}, evaluate=None))
    manifest = corpus / "prepared" / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    with pytest.raises(ConfigError, match=r"data\.folder: was prepared again since"):
        train_run(translation(corpus, train={"steps": 10}, evaluate=None))


def test_an_unsuitable_number_of_processes_is_refused(corpus: Path) -> None:
    config = translation(corpus, train={"steps": 10, "accumulate": 2}, evaluate=None)
    train_run(config)
    folder = RunFolder(corpus / "run")
    found = {"prepared": corpus / "prepared", "bleu_tokenizer": None}
    message = r"was started on 1 .* 2 parts, which 3 cannot share equally; start 1, 2"
    with pytest.raises(ConfigError, match=message):
        folder.open(config, processes=3, **found)
    _, notes = folder.open(config, processes=2, **found)
    assert "started on 1 process(es), resuming on 2" in notes[0]
    assert folder.processes == 1, "the batches stay those of the first start"


@pytest.mark.parametrize("text", ["{", "{}", None])
def test_a_missing_state_is_read_from_the_checkpoint(corpus: Path, text: str | None) -> None:
    train_run(translation(corpus, train={"steps": 10}, evaluate=None))
    state = corpus / "run" / "state.json"
    before = json.loads(state.read_text())
    state.write_text(text) if text else state.unlink()
    changed = translation(corpus, train={"steps": 20, "learning_rate": 0.02}, evaluate=None)
    with pytest.raises(ConfigError, match=r"train\.learning_rate: differs from the run in"):
        train_run(changed)
    train_run(translation(corpus, train={"steps": 20}, evaluate=None))
    before["config"]["train"]["steps"] = 20
    assert json.loads(state.read_text()) == before


def test_a_run_without_any_state_cannot_be_resumed(corpus: Path) -> None:
    folder = RunFolder(Path(translation(corpus).folder))
    train_run(translation(corpus, train={"steps": 10}, evaluate=None))
    latest = folder.checkpoints.latest()
    assert latest is not None
    folder.checkpoints.prune(keep=1, average=1, by="last")
    (latest.folder / "state.json").unlink()
    (folder.path / "state.json").write_text("{")
    with pytest.raises(ModelError, match=r"state\.json is missing, and there is no other"):
        train_run(translation(corpus, train={"steps": 20}, evaluate=None))
    assert latest.folder.is_dir()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"hiden_size": 8}, r"model\.hiden_size: unknown key .*did you mean 'hidden_size'"),
        ({"vocab_size": 8}, r"model\.vocab_size: comes from the tokenizer; leave it out"),
        ({"num_attention_heads": 5}, r"model\.num_attention_heads: got 5, which does not divide"),
        ({"hidden_size": "wide"}, r"model: a value has the wrong type: .*hidden_size"),
    ],
)
def test_a_wrong_model_key_is_named_before_training(
    corpus: Path, section: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train_run(translation(corpus, model={"type": "seq2seq", **SIZE, **section}))


def test_evaluation_needs_a_validation_set(corpus: Path) -> None:
    config = translation(corpus)
    data = config.data.model_dump(exclude_unset=True) | {"valid_rows": None}
    with pytest.raises(ConfigError, match=r"train\.evaluate_every: got 20, but .* no validation"):
        train_run(translation(corpus, data=data))


def test_tensorboard_events_are_optional(corpus: Path) -> None:
    train_run(translation(corpus, train={"steps": 10, "tensorboard": True}, evaluate=None))
    assert list((corpus / "run" / "tensorboard").glob("events.*"))


def test_a_damaged_shard_is_not_trained_on(corpus: Path) -> None:
    config = translation(corpus, train={"steps": 10}, evaluate=None)
    train_run(config)
    shard = corpus / "prepared" / "train-00000.parquet"
    raw = bytearray(shard.read_bytes())
    raw[100] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(DataError, match=r"train-00000\.parquet: changed since it was written"):
        train_run(config, restart=True)


@pytest.mark.parametrize(("given", "wanted"), [("auto", "zh"), ("char", "char")])
def test_validation_computes_bleu_as_the_test(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, given: str, wanted: str
) -> None:
    for name in ("train", "test"):
        english = (corpus / f"{name}.en").read_text()
        spoken = {letter: "天地玄黄宇宙洪荒"[n] for n, letter in enumerate(LETTERS)} | {" ": ""}
        (corpus / f"{name}.de").write_text(english.translate(str.maketrans(spoken)))
    asked: list[str] = []

    def score(*texts: Any, tokenize: str) -> Any:
        asked.append(tokenize)
        return score_translations(*texts, tokenize=tokenize)

    monkeypatch.setattr("outrider.torch.training.validation.score_translations", score)
    evaluate = {"source": "test.en", "reference": "test.de", "tokenize": given}
    folder = train_run(translation(corpus, train={"steps": 20}, evaluate=evaluate))
    assert asked == [wanted]
    result = json.loads((folder.parent / "results.json").read_text())
    assert f"tok:{wanted}|" in result["scores"]["bleu_signature"]
    assert result["training"]["bleu_tokenizer"] == wanted


@pytest.mark.parametrize("split", [True, False])
def test_validation_translates_lines_as_the_test(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, split: bool
) -> None:
    asked: list[bool] = []
    translate = Translator.translate

    def listen(self: Translator, texts: Any, *, split: bool = True, **options: Any) -> Any:
        asked.append(split)
        return translate(self, texts, split=split, **options)

    monkeypatch.setattr(Translator, "translate", listen)
    evaluate = {"source": "test.en", "reference": "test.de", "split": split}
    folder = train_run(translation(corpus, train={"steps": 20}, evaluate=evaluate))
    assert asked == [split, split]  # once in validation, once in the test
    assert json.loads((folder.parent / "results.json").read_text())["split"] is split
    monkeypatch.undo()
    loaded = outrider.load(folder)
    assert isinstance(loaded, Translator)
    assert loaded.split is split, "the model remembers"
    text, config = "two men play. a dog runs.", DecodeConfig()
    pieces = [loaded.requests([text], config, split=how)[0] for how in (None, split)]
    assert [len(one) for one in pieces] == [1 + split] * 2
