"""How well a finished model does a task, as one value for each length that is tested.

    accuracy             share of test examples that greedy decoding gets exactly right
    bits_per_character   of a text, for a language model
    bleu                 of greedy translations

A value is None where the model cannot take inputs that long.
"""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.data.tasks import Exam, SequenceTask, TaskBase
from outrider.data.tasks.text import Task as TextTask
from outrider.data.tasks.translation import Task as TranslationTask
from outrider.decoding import DecodeConfig
from outrider.evaluation.evaluate import evaluate_text, evaluate_translation
from outrider.evaluation.ponder import mean_steps
from outrider.runtime.generator import Generator
from outrider.runtime.load import load
from outrider.runtime.translator import Translator

__all__ = ["score_task"]


def score_task(task: TaskBase, folder: Path, model: Path) -> dict[str, Any]:
    """Test the model folder on the task whose files lie in `folder`."""
    if isinstance(task, TextTask):
        scores = evaluate_text(model, text=task.test_file(folder))["scores"]
        value = scores["bits_per_character"]
        return {"metric": "bits_per_character", "points": [{"length": None, "value": value}]}
    if isinstance(task, TranslationTask):
        pair = task.test_pair()
        result = evaluate_translation(
            model,
            source=pair.source,
            reference=pair.reference,
            decode=DecodeConfig(),
            tokenize=pair.tokenize,
        )
        point = {"length": None, "value": result["scores"]["bleu"], "seconds": result["seconds"]}
        return {"metric": "bleu", "points": [point | {"chrf": result["scores"]["chrf"]}]}
    assert isinstance(task, SequenceTask)
    loaded = load(model, dtype="float32")
    points = [_score(task, loaded, test) for test in task.tests()]
    return {"metric": "accuracy", "points": points}


def _score(task: SequenceTask, loaded: Translator | Generator, test: Exam) -> dict[str, Any]:
    point: dict[str, Any] = {"length": test.length, "examples": len(test.examples)}
    targets = [example.target for example in test.examples]
    if not _reaches(task, loaded, test):
        return point | {"value": None, "token_accuracy": None, "chance": _chance(targets)}
    began = time.monotonic()
    answers = _answers(task, loaded, test)
    seconds = time.monotonic() - began
    right = [answer == target for answer, target in zip(answers, targets, strict=True)]
    symbols = sum(map(_agreeing, answers, targets))
    point |= {
        "value": sum(right) / len(right),
        "token_accuracy": symbols / sum(map(len, targets)),
        "chance": _chance(targets),
        "seconds": round(seconds, 3),
    }
    steps = mean_steps(loaded, _asked(task, loaded, test))
    return point if steps is None else point | {"ponder": steps}


def _answers(task: SequenceTask, loaded: Translator | Generator, test: Exam) -> list[str]:
    """Decode greedily; an answer that goes on past the right length is wrong, and is cut there."""
    room, asked = _room(test), _asked(task, loaded, test)
    if isinstance(loaded, Translator):
        return loaded.translate(asked, split=False, max_new_tokens=room)
    lines = [text.partition("\n") for text in loaded.generate(asked, max_new_tokens=room)]
    # A line without its end is not finished: it says more than the answer.
    return [line if end else f"{line}\n" for line, end, _ in lines]


def _reaches(task: SequenceTask, loaded: Translator | Generator, test: Exam) -> bool:
    """Whether the model has positions for the input and the output."""
    room, asked = _room(test), _asked(task, loaded, test)
    limit = loaded.backend.max_length
    if isinstance(loaded, Translator):
        pieces = loaded.requests(asked, DecodeConfig(), split=False)
        whole = all(len(found) == 1 for found in pieces)
        return whole and (limit is None or room <= limit)
    return limit is None or max(map(len, asked)) + room < limit


def _asked(task: SequenceTask, loaded: Translator | Generator, test: Exam) -> list[str]:
    """What the model is given: the input, or a line that it has to finish."""
    sources = [example.source for example in test.examples]
    return sources if isinstance(loaded, Translator) else [task.prompt(s) for s in sources]


def _room(test: Exam) -> int:
    """Tokens for the longest answer and its end."""
    return max(len(example.target) for example in test.examples) + 1


def _agreeing(answer: str, target: str) -> int:
    """Symbols of the target that stand at their place in the answer."""
    return sum(a == b for a, b in zip(answer, target, strict=False))


def _chance(targets: Sequence[str]) -> float:
    """What always giving the commonest answer would get."""
    return Counter(targets).most_common(1)[0][1] / len(targets)
