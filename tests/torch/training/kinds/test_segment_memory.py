"""Training with a memory that is carried between segments and restored by a resume."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import outrider
from outrider.config import build_config
from outrider.errors import ModelError
from outrider.run_config import RunConfig
from outrider.torch.models import LanguageModel, load_model
from outrider.torch.training.kinds.segment_memory import SegmentObjective
from outrider.torch.training.log import read_log
from outrider.torch.training.run import train_run
from tests.helpers import tiny


def run_config(folder: Path, *, steps: int, run: str, **changes: Any) -> RunConfig:
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefgh", k=generator.randint(1, 3))) for _ in range(9)]
    text = "\n".join(" ".join(generator.choices(words, k=4)) for _ in range(120))
    (folder / "text.txt").write_text(text + "\n")
    values = {
        "name": "remember",
        "folder": str(folder / run),
        "data": {
            "folder": str(folder / "prepared"),
            "root": str(folder),
            "train": {"target": "text.txt"},
            "valid_fraction": 0.1,
            "sequence_length": 16,
            "tokenizer": {"kind": "char", "vocab_size": 64},
        },
        "model": {
            "type": "language_model",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_attention_heads": 2,
            "layers": 2,
            "dropout": 0.1,
            "position": "relative",
            "memory": 12,
            "max_positions": 16,
        },
        "train": {
            "steps": steps,
            "batch_tokens": 256,
            "accumulate": 2,
            "warmup": 2,
            "schedule": "constant",
            "save_every": 7,
            "evaluate_every": 7,
            "log_every": 1,
            "device": "cpu",
        },
    }
    return build_config(RunConfig, {**values, **changes})


def log(folder: Path) -> list[dict[str, Any]]:
    timed = ("seconds", "tokens_per_second")
    records = read_log(folder / "log.jsonl")
    return [{k: v for k, v in record.items() if k not in timed} for record in records]


def test_resumed_run_restores_the_memory_exactly(tmp_path: Path) -> None:
    """Fourteen updates over several epochs, without and with a stop in the middle."""
    at_once = train_run(run_config(tmp_path, steps=14, run="a"))
    train_run(run_config(tmp_path, steps=7, run="b"))
    stopped = train_run(run_config(tmp_path, steps=14, run="b"))
    assert log(at_once.parent) == log(stopped.parent)
    weights = [(one / "model.safetensors").read_bytes() for one in (at_once, stopped)]
    assert weights[0] == weights[1]
    assert read_log(at_once.parent / "log.jsonl")[-1]["step"] == 14


def test_run_with_memory_is_evaluated_with_memory(tmp_path: Path) -> None:
    config = run_config(tmp_path, steps=7, run="a", evaluate={"text": "text.txt", "tail": 0.2})
    folder = train_run(config)
    result = json.loads((folder.parent / "results.json").read_text())
    assert (result["context"], result["memory"]) == (16, 12)
    assert result["scores"]["perplexity_per_word"] > result["scores"]["perplexity"]
    assert isinstance(outrider.load(folder).generate("ab", max_new_tokens=40), str)
    assert load_model(folder).config.memory == 12


def objective_model() -> LanguageModel:
    return tiny.language_model(position="relative", memory=6, max_positions=4)


def batch(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    labels = torch.randint(4, tiny.VOCABULARY, (2, 5))
    return {"input_ids": labels[:, :-1], "labels": labels}


def loss(objective: SegmentObjective, model: LanguageModel, seed: int) -> torch.Tensor:
    return objective.loss(model, batch(seed), divisor=8.0, smoothing=0.0)


def test_a_segment_is_predicted_from_the_previous_one() -> None:
    model, objective = objective_model(), SegmentObjective()
    assert objective.count(batch(0)) == 8
    loss(objective, model, 0)
    remembering = loss(objective, model, 1)
    assert not torch.equal(remembering, loss(SegmentObjective(), model, 1))


def test_memory_is_saved_and_loaded(tmp_path: Path) -> None:
    model, objective, again = objective_model(), SegmentObjective(), SegmentObjective()
    loss(objective, model, 0)
    objective.save(tmp_path, process=1)
    again.load(tmp_path, process=1)
    assert torch.equal(loss(again, model, 1), loss(objective, model, 1))
    with pytest.raises(ModelError, match="the memory of the run cannot be read"):
        again.load(tmp_path, process=0)
