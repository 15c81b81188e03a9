"""Score of a finished model on a task, by test length.

    accuracy             share of test examples that greedy decoding gets exactly right
    bits_per_character   of a text, for a language model
    bleu                 of greedy translations

A value is None if the model does not support the input length.
"""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.decoding import DecodeConfig
from outrider.evaluation.evaluate import evaluate_translation
from outrider.runtime.generator import Generator
from outrider.runtime.load import load
from outrider.runtime.translator import Translator
from outrider.torch.evaluation.likelihood import evaluate_text
from outrider_lab.ponder import mean_steps
from outrider_lab.tasks import SequenceTask, TaskBase, TestSet
from outrider_lab.tasks.text import Task as TextTask
from outrider_lab.tasks.translation import Task as TranslationTask


def score_task(task: TaskBase, folder: Path, model: Path) -> dict[str, Any]:
    """Test the model in folder `model` on the task whose files are in `folder`."""
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


def _score(task: SequenceTask, loaded: Translator | Generator, test: TestSet) -> dict[str, Any]:
    point: dict[str, Any] = {"length": test.length, "examples": len(test.examples)}
    targets = [example.target for example in test.examples]
    if not _fits(task, loaded, test):
        return point | {"value": None, "token_accuracy": None, "chance": _majority(targets)}
    start = time.monotonic()
    answers = _answers(task, loaded, test)
    seconds = time.monotonic() - start
    right = [answer == target for answer, target in zip(answers, targets, strict=True)]
    symbols = sum(map(_matching_symbols, answers, targets))
    point |= {
        "value": sum(right) / len(right),
        "token_accuracy": symbols / sum(map(len, targets)),
        "chance": _majority(targets),
        "seconds": round(seconds, 3),
    }
    steps = mean_steps(loaded, _inputs(task, loaded, test))
    return point if steps is None else point | {"ponder": steps}


def _answers(task: SequenceTask, loaded: Translator | Generator, test: TestSet) -> list[str]:
    """Decode greedily; answers longer than the right one are wrong, and are cut."""
    limit, inputs = _max_new_tokens(test), _inputs(task, loaded, test)
    if isinstance(loaded, Translator):
        return loaded.translate(inputs, split=False, max_new_tokens=limit)
    lines = [text.partition("\n") for text in loaded.generate(inputs, max_new_tokens=limit)]
    # Without a line end the output is longer than the answer, and wrong.
    return [line if end else f"{line}\n" for line, end, _ in lines]


def _fits(task: SequenceTask, loaded: Translator | Generator, test: TestSet) -> bool:
    """Whether the model has positions for input and output."""
    limit, inputs = _max_new_tokens(test), _inputs(task, loaded, test)
    longest = loaded.backend.max_length
    if isinstance(loaded, Translator):
        pieces = loaded.requests(inputs, DecodeConfig(), split=False)
        whole = all(len(requests) == 1 for requests in pieces)
        return whole and (longest is None or limit <= longest)
    return longest is None or max(map(len, inputs)) + limit < longest


def _inputs(task: SequenceTask, loaded: Translator | Generator, test: TestSet) -> list[str]:
    """The model's inputs: the source, or a prompt to complete."""
    sources = [example.source for example in test.examples]
    return sources if isinstance(loaded, Translator) else [task.prompt(s) for s in sources]


def _max_new_tokens(test: TestSet) -> int:
    """Tokens for the longest answer and its end."""
    return max(len(example.target) for example in test.examples) + 1


def _matching_symbols(answer: str, target: str) -> int:
    """Count the symbols of the target that match the answer at their position."""
    return sum(a == b for a, b in zip(answer, target, strict=False))


def _majority(targets: Sequence[str]) -> float:
    """Return the accuracy of always giving the most frequent answer."""
    return Counter(targets).most_common(1)[0][1] / len(targets)
