"""Training on completions only."""

import random
from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider.config import build_config
from outrider.errors import ConfigError
from outrider.run_config import RunConfig
from outrider.torch.training.log import read_log
from outrider.torch.training.run import train_run


def run_config(folder: Path, model: dict[str, Any] | None = None, **changes: Any) -> RunConfig:
    """Lines of eight symbols: random letters, then always the same answer."""
    generator = random.Random(0)
    lines = ("".join(generator.choices("bcdefgh", k=3)) + "=xyz\n" for _ in range(200))
    (folder / "text.txt").write_text("".join(lines))
    values = {
        "name": "answer",
        "folder": str(folder / "run"),
        "data": {
            "folder": str(folder / "prepared"),
            "root": str(folder),
            "train": {"target": "text.txt"},
            "valid_fraction": 0.1,
            "sequence_length": 32,
            "tokenizer": {"kind": "char", "vocab_size": 64},
        },
        "model": {
            "type": "language_model",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_attention_heads": 2,
            "layers": 1,
            **(model or {}),
        },
        "train": {
            "steps": 60,
            "batch_tokens": 256,
            "warmup": 5,
            "learning_rate": 0.01,
            "schedule": "constant",
            "save_every": 60,
            "evaluate_every": 60,
            "log_every": 60,
            "label_smoothing": 0.0,
            "device": "cpu",
            "completions": {"after": "="},
            **changes,
        },
    }
    return build_config(RunConfig, values)


def losses(folder: Path) -> list[float]:
    return [one["loss"] for one in read_log(folder / "run" / "log.jsonl") if "perplexity" in one]


def test_run_learns_completions_only(tmp_path: Path) -> None:
    """Answers are learnable; the loss of the whole text cannot fall below 3 ln(7) / 8."""
    train_run(run_config(tmp_path))
    assert losses(tmp_path)[-1] < 0.1


def test_completions_cut_by_a_segment_are_learnt_with_memory(tmp_path: Path) -> None:
    """Segments are shorter than an answer, so most labels follow a cut."""
    model = {"position": "relative", "memory": 16, "max_positions": 2}
    folder = train_run(run_config(tmp_path, model, steps=120))
    assert losses(tmp_path)[-1] < 0.1
    assert outrider.load(folder).generate(["bcd="], max_new_tokens=4) == ["xyz\n"]


def test_marks_missing_in_the_text_are_refused(tmp_path: Path) -> None:
    config = run_config(tmp_path, completions={"after": "==="})
    with pytest.raises(ConfigError, match=r"train\.completions\.after: got '===', tokens \["):
        train_run(config)


def test_other_models_are_refused(tmp_path: Path) -> None:
    values = run_config(tmp_path).model_dump(mode="json")
    values["model"] = {"type": "seq2seq"}
    with pytest.raises(ConfigError, match=r"train\.completions: is for a language_model"):
        build_config(RunConfig, values)
