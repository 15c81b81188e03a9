"""A right-to-left run equals a left-to-right run on reversed targets."""

import json
import random
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import outrider
from outrider.config import build_config
from outrider.data.prepared import open_prepared
from outrider.errors import ConfigError
from outrider.jobs.distill import distill
from outrider.run_config import RunConfig
from outrider.torch.compress.student.narrow import draw
from outrider.torch.compress.student.shrink import choose_layers
from outrider.torch.models import Seq2Seq, load_model
from outrider.torch.training.check import check_run
from outrider.torch.training.log import read_log
from outrider.torch.training.run import train_run

SIZE = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
TRAIN = {
    "steps": 60,
    "batch_tokens": 256,
    "learning_rate": 0.02,
    "warmup": 10,
    "save_every": 30,
    "evaluate_every": 30,
    "average": 1,
    "log_every": 20,
    "precision": "float32",
    "device": "cpu",
}
WAYS = ("usual", "turned")


def run(home: Path, way: str, model: dict[str, Any], **changes: Any) -> Path:
    values = {
        "name": "x",
        "folder": str(home / f"run-{way}-{model['type']}"),
        "model": model,
        "train": TRAIN | changes.pop("train", {}),
        **changes,
    }
    return train_run(build_config(RunConfig, values))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, one per direction; the targets of one are the reverse of the other's."""
    folder, dice = tmp_path_factory.mktemp("home"), random.Random(0)
    lines = ["".join(dice.choices("abcd", k=dice.randint(2, 9))) for _ in range(200)]
    lines += ["abcd", "dcba"]  # both directions give the same vocabulary
    for way in WAYS:
        targets = [line[::-1] if way == "usual" else line for line in lines]
        for ending, texts in (("en", lines), (way, targets)):
            (folder / f"train.{ending}").write_text("".join(f"{one}\n" for one in texts))
        data = {
            "folder": str(folder / f"prepared-{way}"),
            "root": str(folder),
            "train": {"source": "train.en", "target": f"train.{way}"},
            "valid_rows": 12,
            "tokenizer": {"kind": "char", "vocab_size": 16},
            "clean": {"drop_duplicates": False, "max_tokens": 12},
        }
        model = {"type": "seq2seq", **SIZE, **LAYERS}
        turned = {"right_to_left": True} if way == "turned" else {}
        finished = run(folder, way, model | turned, data=data, train={"stop_metric": "bleu"})
        distill(finished, folder / f"prepared-{way}", folder / f"said-{way}", progress=False)
    return folder


def logged(home: Path, kind: str, key: str) -> list[list[float]]:
    logs = (read_log(home / f"run-{way}-{kind}" / "log.jsonl") for way in WAYS)
    return [[record[key] for record in log if key in record] for log in logs]


def targets(folder: Path) -> list[list[int]]:
    rows = open_prepared(folder).reader("train").ids(0, "target_ids")
    return [rows.flat[a:b].tolist() for a, b in pairwise(rows.offsets.tolist())]


def test_right_to_left_run_equals_a_run_on_reversed_targets(home: Path) -> None:
    found = [home / f"run-{way}-seq2seq" / "model" for way in WAYS]
    assert len({(folder / "model.safetensors").read_bytes() for folder in found}) == 1
    for key in ("loss", "perplexity", "bleu"):
        usual, turned = logged(home, "seq2seq", key)
        assert usual == turned
        assert usual
    assert json.loads((found[1] / "config.json").read_text())["right_to_left"] is True
    texts = ["abc", "bcaad", "dd", "cadbb"]
    one, other = (outrider.load(folder) for folder in found)
    assert other.translate(texts) == [text[::-1] for text in one.translate(texts)]
    assert one.translate(texts) != other.translate(texts)


def test_distilled_targets_are_in_reading_order(home: Path) -> None:
    usual, turned = (targets(home / f"said-{way}") for way in WAYS)
    assert turned == [row[::-1] for row in usual]
    assert turned != usual


def test_layer_choice_uses_the_direction_of_the_model(home: Path) -> None:
    drawn, told = [], []
    for way in WAYS:
        model = load_model(home / f"run-{way}-seq2seq" / "model")
        prepared, console = open_prepared(home / f"prepared-{way}"), Console(file=StringIO())
        assert isinstance(model, Seq2Seq)
        drawn.append(next(draw(model, prepared))["labels"].tolist())
        choose_layers(model, prepared, {"decoder": 1}, console=console)
        assert isinstance(console.file, StringIO)
        told.append(console.file.getvalue())
    assert drawn[0] == drawn[1]
    assert told[0] == told[1]
    assert "all layers: loss" in told[0]


@pytest.mark.parametrize(
    ("model", "mode"),
    [
        ({"type": "drafter", "rank": 4, "block": 6, "train_block": 4}, "tandem"),
        ({"type": "ctc", "layers": 1, "upsample": 3}, "parallel"),
    ],
    ids=["drafter", "ctc"],
)
def test_side_decoders_learn_the_same_direction(
    home: Path, model: dict[str, Any], mode: str
) -> None:
    """The distilled shards are in reading order."""
    found = []
    for way in WAYS:
        target = home / f"run-{way}-seq2seq" / "model"
        data = {"folder": str(home / f"said-{way}")}
        short = {"steps": 12, "warmup": 2, "save_every": 6, "evaluate_every": 6, "log_every": 2}
        found.append(run(home, way, model | {"target": str(target)}, data=data, train=short))
    kind = model["type"]
    assert len({(one / kind / "model.safetensors").read_bytes() for one in found}) == 1
    usual, turned = logged(home, kind, "loss")
    assert usual == turned
    texts = ["abc", "bcaad", "dd", "cadbb"]
    one, other = (outrider.load(folder) for folder in found)
    written = other.translate(texts, mode=mode)
    assert written == [text[::-1] for text in one.translate(texts, mode=mode)]
    assert mode == "parallel" or written == other.translate(texts)


def test_word_level_teacher_has_the_same_direction(home: Path, tmp_path: Path) -> None:
    teacher = str(home / "run-turned-seq2seq" / "model")
    values = {
        "name": "x",
        "folder": str(tmp_path / "run"),
        "data": {"folder": str(home / "prepared-usual")},
        "model": {"type": "seq2seq", **SIZE, **LAYERS},
        "train": TRAIN | {"teacher": teacher},
    }
    said = r"train\.teacher: .* writes from right to left and the model from left to right"
    with pytest.raises(ConfigError, match=said):
        check_run(build_config(RunConfig, values))
    model = {"type": "seq2seq", "start": str(home / "run-usual-seq2seq" / "model")}
    with pytest.raises(ConfigError, match=said):
        check_run(build_config(RunConfig, values | {"model": model}))
    check_run(build_config(RunConfig, values | {"model": model | {"start": teacher}}))
    message = r"model\.right_to_left: comes from model\.start"
    with pytest.raises(ConfigError, match=message):
        check_run(build_config(RunConfig, values | {"model": model | {"right_to_left": True}}))
    message = r"model\.right_to_left: unknown key of LanguageModelConfig"
    language_model = {"type": "language_model", **SIZE, "layers": 1, "right_to_left": True}
    with pytest.raises(ConfigError, match=message):
        check_run(build_config(RunConfig, values | {"model": language_model, "train": TRAIN}))
