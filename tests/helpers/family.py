"""Every preset of `configs/family` at small size."""

import json
from pathlib import Path
from typing import Any

import torch
import yaml

from outrider.config import build_config
from outrider.run_config import RunConfig
from outrider.torch.models import Drafter, DrafterConfig, load_model

FAMILY = Path(__file__).parents[2] / "configs" / "family"
PRESETS = sorted(path.stem for path in FAMILY.glob("*.yaml"))
MODELS = [name for name in PRESETS if not name.endswith("-drafter")]
WRITERS = [name for name in MODELS if name != "masked-lm"]
SIZE = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
TRAIN = {
    **{"steps": 2, "batch_tokens": 96, "save_every": 2, "evaluate_every": 0, "warmup": 0},
    **{"precision": "float32", "device": "cpu", "stop_metric": "loss", "log_every": 1},
}
LINES = ["a small dog runs", "two men play", "where is it", "it is late we go home"] * 8
PROMPTS = ["a small", "two men play a", "where"]
BEAMS: dict[str, Any] = {"beams": 3, "max_new_tokens": 12}


def small(name: str, folder: Path) -> RunConfig:
    """Return the preset with its parts, tiny sizes and a corpus of four lines."""
    values: dict[str, Any] = yaml.safe_load((FAMILY / f"{name}.yaml").read_text())
    model = {**values["model"], **SIZE}
    layers = [key for key in ("layers", "encoder_layers", "decoder_layers") if key in model]
    model |= dict.fromkeys(layers, 2)
    if model.get("memory"):
        model |= {"memory": 8, "max_positions": 8}
    pairs = model["type"] == "seq2seq"
    (folder / "source.txt").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "target.txt").write_text("".join(f"{line[::-1]}\n" for line in LINES))
    data: dict[str, Any] = {"target": str(folder / "target.txt")}
    if pairs:
        data = {"source": str(folder / "source.txt"), **data}
    data = {"folder": str(folder / "data"), "train": data}
    data |= {"tokenizer": {"kind": "char", "vocab_size": 64}}
    if pairs:
        data["clean"] = {"drop_duplicates": False}
    else:
        data["sequence_length"] = 9 if model.get("memory") else 24
    values |= {
        "folder": str(folder / "run"),
        "data": data,
        "model": model,
        "train": {**values["train"], **TRAIN},
        "evaluate": own_test(values, folder),
    }
    return build_config(RunConfig, values)


def own_test(preset: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """Return the preset's evaluation on two short lines; translation presets use beams."""
    test = preset.get("evaluate")
    if test is None or "text" in test:
        return test and {**test, "text": str(folder / "target.txt")}
    for side in ("source", "target"):
        lines = (folder / f"{side}.txt").read_text().splitlines(keepends=True)
        (folder / f"test.{side}").write_text("".join(lines[:2]))
    paths = {"source": str(folder / "test.source"), "reference": str(folder / "test.target")}
    decode = test.get("decode", {"strategy": "beam", "beams": 5})
    return {**test, **paths, "decode": {**decode, "max_new_tokens": 12}}


def scores(run: Path) -> dict[str, Any]:
    """Return the scores of a run's evaluation."""
    return json.loads((run / "results.json").read_text())["scores"]


def give_drafter(folder: Path) -> None:
    """Save a drafter of random weights with a model; nearly all its drafts are wrong."""
    target = load_model(folder)
    torch.manual_seed(0)
    config = DrafterConfig.for_target(target.config, block=4, train_block=3)
    Drafter(config).save_pretrained(folder / "drafter")
