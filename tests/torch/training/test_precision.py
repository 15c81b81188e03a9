"""`train.precision: auto` measures once; a resumed run keeps the recorded choice."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.errors import ConfigError
from outrider.torch.training import precision
from outrider.torch.training.folder import RunFolder
from outrider.torch.training.log import read_log
from outrider.torch.training.objective import Objective
from outrider.torch.training.precision import PrecisionChoice, choose_precision
from outrider.torch.training.run import train_run
from tests.helpers import tiny

from .test_run import corpus, translation  # noqa: F401  (a fixture)


def inputs() -> dict[str, Tensor]:
    ids = torch.randint(4, tiny.VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


@pytest.mark.parametrize(
    ("slowness", "wanted"), [(0.5, "bfloat16"), (0.97, "float32"), (2.2, "float32")]
)
def test_the_faster_precision_is_chosen_and_a_tie_gives_float32(
    monkeypatch: pytest.MonkeyPatch, slowness: float, wanted: str
) -> None:
    def timed(*args: Any) -> float:
        return slowness if args[3] == "bfloat16" else 1.0

    monkeypatch.setattr(precision, "_pass", timed)
    choice = choose_precision(tiny.seq2seq(), Objective, inputs())
    assert choice == PrecisionChoice(wanted, {"float32": 1.0, "bfloat16": slowness})
    assert f"precision: {wanted}" in str(choice)


def test_device_without_bfloat16_uses_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(*args: Any) -> float:
        if args[3] == "bfloat16":
            raise NotImplementedError("no kernel")
        return 1.0

    monkeypatch.setattr(precision, "_pass", timed)
    assert choose_precision(tiny.seq2seq(), Objective, inputs()).precision == "float32"


def test_measuring_leaves_the_model_unchanged() -> None:
    model = tiny.seq2seq(dropout=0.3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    choice = choose_precision(model, Objective, inputs())
    assert all(0 < seconds < 60 for seconds in choice.seconds.values())
    torch.testing.assert_close(torch.rand(3), wanted, rtol=0, atol=0)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training


def pretend(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Replace the measurement by `name`; the returned list grows with every measurement."""
    measured: list[str] = []

    def choose(*_: Any) -> PrecisionChoice:
        measured.append(name)
        return PrecisionChoice(name, {"float32": 1.0, "bfloat16": 2.0})

    monkeypatch.setattr("outrider.torch.training.run.choose_precision", choose)
    return measured


@pytest.mark.parametrize("name", ["bfloat16", "float32"])
def test_a_resumed_run_keeps_the_choice(
    corpus: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    other = {"bfloat16": "float32", "float32": "bfloat16"}[name]
    small = {"evaluate_every": 0, "stop_metric": "loss", "average": 1}

    def config(folder: str, **train: Any) -> Any:
        return translation(
            corpus, folder=str(corpus / folder), evaluate=None, train={**small, **train}
        )

    plain = train_run(config("plain", steps=20, precision=name))
    assert pretend(monkeypatch, name) == []
    train_run(config("auto", steps=10, precision="auto"))
    measured = pretend(monkeypatch, other)
    model = train_run(config("auto", steps=20, precision="auto"))
    assert measured == []
    assert (model / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()

    folder = RunFolder(corpus / "auto")
    assert folder.chosen["precision"] == name
    assert json.loads((model / "provenance.json").read_text())["training"]["precision"] == name
    assert f"in {name}" in (model / "README.md").read_text()
    record = read_log(folder.log.path)[0]
    assert (record["event"], record["precision"]) == ("precision", name)

    train_run(config("auto", steps=20, precision=name))  # the same precision, named explicitly
    with pytest.raises(ConfigError, match=r"train\.precision: differs from the run in"):
        train_run(config("auto", steps=20, precision=other))


def test_restart_measures_again(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    config = translation(
        corpus,
        evaluate=None,
        train={"steps": 5, "evaluate_every": 0, "stop_metric": "loss", "precision": "auto"},
    )
    for name in ("bfloat16", "float32"):
        assert pretend(monkeypatch, name) == []
        train_run(config, restart=True)
        assert RunFolder(Path(config.folder)).chosen["precision"] == name
        events = [one["event"] for one in read_log(Path(config.folder) / "log.jsonl")]
        assert events.count("precision") == 1
