"""Compare teacher and student: translation scores, size and speed."""

import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from outrider.backends import native
from outrider.bench import bench, choose_lines
from outrider.data.lines import text_lines
from outrider.decoding import DecodeConfig
from outrider.errors import DataError
from outrider.evaluation.evaluate import evaluate_translation
from outrider.files import read_json, write_json, write_text
from outrider.runtime.backend import choose_backend
from outrider.runtime.provenance import origin
from outrider.torch.training.card import UNSCORED

RESULT = "student.json"
TITLE = "## Beside its teacher"
BATCHES, SENTENCES = (1, 32), 64
SHOWN = 50
"""Sentences in the card, over all tests."""
SIDES = ("teacher", "student")


class Test(NamedTuple):
    """A test set."""

    source: Path
    reference: Path
    tokenize: str = "auto"
    """SacreBLEU's tokenizer."""
    split: bool | None = None
    """Whether lines are translated sentence by sentence."""


def compare(
    teacher: Path,
    student: Path,
    tests: Mapping[str, Test],
    *,
    seed: int = 0,
    console: Console | None = None,
) -> dict[str, Any]:
    """Score and time both models; write the results to `student.json` and to the student's card.

    Both are decoded greedily, in int8 if the native core is installed; speed is measured on one
    thread.

    Args:
        teacher: The large model.
        student: The small model, as exported.
        tests: Test sets by name; speed is measured on the first.
        seed: Seed of the sentences in the card.
        console: Where to report; by default nowhere.
    """
    files = {f"{name}_{side}": getattr(test, side) for name, test in tests.items()
             for side in ("source", "reference")}  # fmt: skip
    path, source_info = student / RESULT, origin(student, **files)
    if path.is_file():
        before: dict[str, Any] = read_json(path, error=DataError)
        if all(before.get(key) == source_info[key] for key in ("weights_sha256", "data")):
            return before
    if console is not None:
        console.print("comparing the student with its teacher", highlight=False)
    dtype = choose_backend(None, None).dtype
    scores: dict[str, Any] = {}
    samples: list[tuple[str, ...]] = []
    rng = random.Random(seed)
    for name, test in tests.items():
        test_scores, texts = _translate(
            dict(zip(SIDES, (teacher, student), strict=True)), test, dtype
        )
        for side, prefix in (("student", ""), ("teacher", "teacher_")):
            scores |= {f"{prefix}{name}_{key}": test_scores[side][key] for key in ("bleu", "chrf")}
        rows = list(zip(text_lines(test.source), texts["teacher"], texts["student"], strict=True))
        samples += rng.sample(rows, min(len(rows), SHOWN // len(tests)))
    result = {
        "task": "student",
        **scores,
        "megabytes": megabytes(student),
        "teacher_megabytes": megabytes(teacher),
        "dtype": dtype,
        "speed": measure_speed(teacher, student, next(iter(tests.values()))),
        **source_info,
    }
    write_json(path, result)
    _describe(student / "README.md", result, tests, samples)
    return result


def _translate(
    models: Mapping[str, Path], test: Test, dtype: str
) -> tuple[dict[str, dict[str, float]], dict[str, list[str]]]:
    """Return the scores and translations of each model."""
    scores, texts = {}, {}
    with tempfile.TemporaryDirectory() as working:
        for side, folder in models.items():
            output = Path(working, side)
            result = evaluate_translation(
                folder,
                source=test.source,
                reference=test.reference,
                decode=DecodeConfig(),
                tokenize=test.tokenize,
                split=test.split,
                dtype=dtype,
                output=output,
            )
            scores[side] = {key: round(result["scores"][key], 2) for key in ("bleu", "chrf")}
            texts[side] = output.read_text("utf-8").split("\n")[:-1]
    return scores, texts


def megabytes(model: Path) -> float:
    """Return the size of a folder."""
    files = [path for path in model.rglob("*") if path.is_file()]
    return round(sum(path.stat().st_size for path in files) / 1e6, 2)


def measure_speed(teacher: Path, student: Path, test: Test) -> list[dict[str, Any]]:
    """Time both models alternately: greedy, one thread."""
    result = bench(
        {"teacher": teacher, "student": student},
        choose_lines(test.source, SENTENCES),
        batches=BATCHES,
        modes=("ar",),
        backend="native" if native.is_installed() else None,
    )
    speeds = {(row["model"], row["batch"]): row["sentences_per_second"] for row in result["rows"]}
    return [
        {
            "engine": f"{row['model']}-{row['engine']}",
            "batch": row["batch"],
            "threads": row["threads"],
            "sentences_per_second": row["sentences_per_second"],
            "times_teacher": round(
                speeds[row["model"], row["batch"]] / speeds["teacher", row["batch"]], 2
            ),
        }
        for row in result["rows"]
    ]


def _describe(
    card: Path,
    result: dict[str, Any],
    tests: Mapping[str, Test],
    samples: list[tuple[str, ...]],
) -> None:
    """Write the comparison into the card, replacing an earlier one."""
    before = card.read_text(encoding="utf-8").split(TITLE)[0].rstrip() if card.is_file() else ""
    before = before.replace(UNSCORED, "See [Beside its teacher](#beside-its-teacher).")
    lines = [TITLE, "", *_score_lines(result, tests), "", *_speed_lines(result), ""]
    machine = result["machine"]
    sets = ", ".join(machine.get("instructions", []))
    lines += [f"Machine: {machine.get('processor', '')} ({sets}).", ""]
    lines += [f"### {len(samples)} sentences, drawn at random", ""]
    lines += ["| source | teacher | student |", "|---|---|---|"]
    lines += [f"| {' | '.join(map(_in_a_cell, row))} |" for row in samples]
    write_text(card, before + "\n\n" + "\n".join([*lines, ""]))


def _score_lines(result: dict[str, Any], tests: Mapping[str, Test]) -> Iterator[str]:
    yield f"Greedy, {result['dtype']}; MB of the folder."
    yield ""
    yield "| | " + " | ".join(f"{name} BLEU | chrF" for name in tests) + " | MB |"
    yield "|---|" + "---:|" * (2 * len(tests) + 1)
    for side, prefix in (("teacher", "teacher_"), ("student", "")):
        scores = [result[f"{prefix}{name}_{key}"] for name in tests for key in ("bleu", "chrf")]
        shown = " | ".join(f"{score:.2f}" for score in scores)
        yield f"| {side} | {shown} | {result[f'{prefix}megabytes']:.1f} |"


def _speed_lines(result: dict[str, Any]) -> Iterator[str]:
    yield "| engine | batch | sentences a second, one thread | times the teacher |"
    yield "|---|---:|---:|---:|"
    for row in result["speed"]:
        speed, times = row["sentences_per_second"], row["times_teacher"]
        yield f"| {row['engine']} | {row['batch']} | {speed:,.1f} | {times:.2f} |"


def _in_a_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
