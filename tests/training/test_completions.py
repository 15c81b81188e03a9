"""Learning completions alone: which labels count, and that nothing else is learnt."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from outrider.config import build_config
from outrider.errors import ConfigError
from outrider.training.log import read_log
from outrider.training.objectives import IGNORED, LanguageModelObjective, SegmentObjective
from outrider.training.objectives.completions import Completions
from outrider.training.run import train_run
from outrider.training.run_config import RunConfig

marks = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple)
rows = st.lists(st.integers(0, 3), min_size=1, max_size=24)


def counted(row: list[int], after: tuple[int, ...], until: tuple[int, ...]) -> list[int]:
    """Read the row from left to right, as the equation says it."""
    labels, within = [], False
    for place, token in enumerate(row):
        labels.append(token if within else IGNORED)
        read = tuple(row[: place + 1])
        if read[-len(until) :] == until:
            within = False
        elif read[-len(after) :] == after:
            within = True
    return labels


@given(row=rows, after=marks, until=marks)
def test_labels_are_those_between_the_marks(
    row: list[int], after: tuple[int, ...], until: tuple[int, ...]
) -> None:
    found = Completions(after, until).labels(torch.tensor([row, row[::-1]]))
    assert found.tolist() == [counted(row, after, until), counted(row[::-1], after, until)]


def test_padding_is_never_a_label() -> None:
    label_BT = torch.tensor([[1, 5, 2, 3, 0, IGNORED], [5, IGNORED, IGNORED, *[IGNORED] * 3]])
    found = Completions((5,), (0,)).labels(label_BT)
    assert found.tolist() == [
        [IGNORED, IGNORED, 2, 3, 0, IGNORED],
        [IGNORED] * 6,
    ]


@pytest.mark.parametrize("objective", [LanguageModelObjective, SegmentObjective])
def test_the_loss_is_that_of_the_completions(objective: Any) -> None:
    """Transcribed: the sum of -log p over the tokens that are counted."""
    memory = {"position": "relative", "memory": 8} if objective is SegmentObjective else {}
    model = tiny.language_model(**memory).double().eval()
    token_BT = torch.randint(6, 16, (2, 12), generator=torch.Generator().manual_seed(0))
    token_BT[:, 4], token_BT[:, 9] = 5, 4
    inputs = {"input_ids": token_BT, "labels": token_BT}
    loss = objective(Completions((5,), (4,))).loss(model, inputs, divisor=1.0, smoothing=0.0)
    with torch.no_grad():
        logp_BTV = model(input_ids=token_BT).logits.log_softmax(-1)
    expected = -sum(
        logp_BTV[row, place - 1, token_BT[row, place]] for row in (0, 1) for place in range(5, 10)
    )
    torch.testing.assert_close(loss.detach(), torch.as_tensor(expected))
    assert objective(Completions((5,), (4,))).count(inputs) == 10


def run_config(folder: Path, **changes: Any) -> RunConfig:
    """Lines of random letters, and always the same word for an answer."""
    generator = random.Random(0)
    lines = ("".join(generator.choices("bcdefgh", k=4)) + "=xyz\n" for _ in range(200))
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


def test_a_run_learns_answers_and_nothing_of_questions(tmp_path: Path) -> None:
    """Answers are certain soon; the loss of the whole text could not fall below 4 ln(7) / 9."""
    train_run(run_config(tmp_path))
    loss = [one["loss"] for one in read_log(tmp_path / "run" / "log.jsonl") if "perplexity" in one]
    assert loss[-1] < 0.1


def test_marks_that_are_not_in_the_text_are_refused(tmp_path: Path) -> None:
    config = run_config(tmp_path, completions={"after": "==="})
    with pytest.raises(ConfigError, match=r"train\.completions\.after: got '===', tokens \["):
        train_run(config)


def test_it_is_for_language_models(tmp_path: Path) -> None:
    values = run_config(tmp_path).model_dump(mode="json")
    values["model"] = {"type": "seq2seq"}
    with pytest.raises(ConfigError, match=r"train\.completions: is for a language_model"):
        build_config(RunConfig, values)
