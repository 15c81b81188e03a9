"""Scores of a task: correct answers, and inputs a model does not support."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.runtime.generator import Generator
from outrider.runtime.translator import Translator
from outrider.torch.backend import TorchBackend
from outrider_lab import task_score
from outrider_lab.ponder import mean_steps
from outrider_lab.task_score import score_task
from outrider_lab.tasks import SequenceTask, build_task
from tests.helpers import tiny

SMALL = {"train_length": 4, "test_lengths": [4, 8], "test_examples": 10}


class Reverser(Translator):
    """Reverses its inputs; adds a wrong symbol to long ones."""

    def __init__(self, limit: int | None = None) -> None:
        self.backend: Any = SimpleNamespace(max_length=limit)

    def requests(self, texts: Sequence[str], config: object, *, split: bool) -> list[list[Any]]:
        assert not split
        return [[None] for _ in texts]

    def translate(self, texts: Sequence[str], **options: Any) -> Any:
        assert options == {"split": False, "max_new_tokens": len(texts[0]) + 1}
        return [text[::-1] if len(text) == 4 else f"{text[::-1]}0" for text in texts]


class Continuer(Generator):
    """Completes lines: short ones correctly, longer ones without a line end."""

    def __init__(self, limit: int | None = None) -> None:
        self.backend: Any = SimpleNamespace(max_length=limit)

    def generate(self, prompts: Sequence[str], **options: Any) -> Any:
        sources = [prompt.strip("\n=") for prompt in prompts]
        return [f"{s[::-1]}\n12=2" if len(s) == 4 else s[::-1] for s in sources]


def score(monkeypatch: pytest.MonkeyPatch, model: Translator | Generator) -> list[dict[str, Any]]:
    task = build_task("reverse", SMALL)
    monkeypatch.setattr(task_score, "load", lambda folder, **_: model)
    result = score_task(task, Path("task"), Path("model"))
    assert result["metric"] == "accuracy"
    return result["points"]


@pytest.mark.parametrize("kind", [Reverser, Continuer])
def test_only_the_exact_output_with_its_end_is_correct(
    monkeypatch: pytest.MonkeyPatch, kind: type[Reverser | Continuer]
) -> None:
    short, long = score(monkeypatch, kind())
    assert (short["length"], short["value"], short["token_accuracy"]) == (4, 1.0, 1.0)
    assert (long["length"], long["value"], long["token_accuracy"]) == (8, 0.0, 1.0)
    assert short["chance"] == 0.1
    assert "ponder" not in short


@pytest.mark.parametrize(("kind", "limit"), [(Reverser, 8), (Continuer, 12)])
def test_inputs_beyond_the_positions_are_not_scored(
    monkeypatch: pytest.MonkeyPatch, kind: type[Reverser | Continuer], limit: int
) -> None:
    short, long = score(monkeypatch, kind(limit))
    assert short["value"] == 1.0
    assert long["value"] is None


def test_a_wrong_symbol_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    task = build_task("copy", SMALL | {"test_lengths": [4]})
    assert isinstance(task, SequenceTask)
    monkeypatch.setattr(task_score, "load", lambda folder, **_: Reverser())
    (point,) = score_task(task, Path("task"), Path("model"))["points"]
    words = [example.source for example in task.tests()[0].examples]
    assert point["value"] == sum(w == w[::-1] for w in words) / 10
    same = sum(a == b for w in words for a, b in zip(w, w[::-1], strict=True))
    assert point["token_accuracy"] == same / 40


class Letters:
    """A tokenizer of one token per letter."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[ord(letter) - 90 for letter in text] for text in texts]


@pytest.mark.parametrize(("bias", "steps"), [(20.0, 1.0), (-20.0, 3.0)])
@pytest.mark.parametrize("kind", ["seq2seq", "language_model"])
def test_ponder_steps_equal_those_of_the_encoder(kind: str, bias: float, steps: float) -> None:
    options: dict[str, Any] = {
        "depth": "shared",
        "position": "coordinate",
        "halting": {"bias": bias},
    }
    if kind == "seq2seq":
        backend = TorchBackend(tiny.seq2seq(encoder_layers=3, **options))
        loaded: Any = Translator(backend, Letters(), longest=50)  # type: ignore[arg-type]
    else:
        backend = TorchBackend(tiny.language_model(layers=3, **options))
        loaded = Generator(backend, Letters())  # type: ignore[arg-type]
    assert mean_steps(loaded, ["abc", "bcd"]) == steps


def test_a_model_without_halting_has_no_steps() -> None:
    loaded = Generator(TorchBackend(tiny.language_model()), Letters())  # type: ignore[arg-type]
    assert mean_steps(loaded, ["a"]) is None
