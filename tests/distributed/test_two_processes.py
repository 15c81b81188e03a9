"""Training on two processes equals training on one, up to the rounding of sums."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.launch import Run

pytestmark = [pytest.mark.slow, pytest.mark.dist]


def config(corpus: Path) -> dict[str, Any]:
    return {
        "name": "two",
        "data": {
            "folder": str(corpus / "prepared"),
            "root": str(corpus),
            "train": {"source": "train.en", "target": "train.de"},
            "valid_rows": 10,
            "tokenizer": {"kind": "char", "vocab_size": 64},
        },
        "model": {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_attention_heads": 2,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "dropout": 0.0,
        },
        # Lines of eleven letters and an end token: batches of 16 rows, 8 for each of two processes.
        "train": {
            "steps": 20,
            "batch_tokens": 192,
            "warmup": 5,
            "adam_epsilon": 1e-4,  # otherwise Adam amplifies rounding if a gradient is zero
            "save_every": 20,
            "evaluate_every": 10,
            "stop_metric": "bleu",
            "log_every": 1,
        },
    }


def remembering(corpus: Path) -> dict[str, Any]:
    """A language model with memory: 16 lanes, 8 for each of two processes."""
    values = config(corpus)
    data = {"train": {"target": "train.en"}, "valid_fraction": 0.2, "sequence_length": 12}
    shared = {key: values["data"][key] for key in ("folder", "root", "tokenizer")}
    model = {key: value for key, value in values["model"].items() if "coder" not in key}
    model |= {"type": "language_model", "layers": 2, "position": "relative"}
    model |= {"memory": 8, "max_positions": 12}
    train = values["train"] | {"stop_metric": "perplexity"}
    return values | {"data": shared | data, "model": model, "train": train}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    generator = random.Random(0)
    folder = tmp_path / "corpus"
    folder.mkdir()
    lines = ["".join(generator.choices("abcdefgh", k=11)) for _ in range(90)]
    (folder / "train.en").write_text("".join(f"{line}\n" for line in lines))
    (folder / "train.de").write_text("".join(f"{line[::-1]}\n" for line in lines))
    return folder


@pytest.mark.parametrize("make", [config, remembering])
def test_two_processes_equal_one(
    tmp_path: Path, corpus: Path, make: Callable[[Path], dict[str, Any]]
) -> None:
    values = make(corpus)
    one = Run(tmp_path / "one", values, processes=1)
    two = Run(tmp_path / "two", values, processes=2)
    shares = Run(
        tmp_path / "shares", values | {"train": values["train"] | {"shard": True}}, processes=2
    )
    one.finish()
    for run in (two, shares):
        run.finish()
        for alone, shared in zip(one.log(), run.log(), strict=True):
            assert alone.pop("event") == shared.pop("event")
            assert alone == pytest.approx(shared, rel=1e-3)
        ours, theirs = load_file(one.weights), load_file(run.weights)
        assert ours.keys() == theirs.keys()
        for name, weight in ours.items():
            torch.testing.assert_close(weight, theirs[name], rtol=1e-3, atol=1e-4)
