"""Teacher and student side by side: how well each translates, how large it is, how fast."""

import random
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from outrider.decoding import DecodeConfig
from outrider.errors import DataError, OutriderError
from outrider.evaluation.evaluate import evaluate_translation, read_lines
from outrider.files import read_json, write_json, write_text
from outrider.runtime.engine import choose_engine
from outrider.runtime.origin import origin
from outrider.torch.training.card import UNSCORED
from outrider_lab.bench.decode.plan import settings
from outrider_lab.bench.decode.run import bench_model, choose_sentences
from outrider_lab.bench.decode.speed import Limits

__all__ = ["Test", "compare", "measure_speed", "megabytes"]

RESULT = "student.json"
TITLE = "## Beside its teacher"
BATCHES, SENTENCES, REPEATS = (1, 32), 64, 3
SHOWN = 50
"""Sentences of the card, of all tests together."""
SIDES = ("teacher", "student")


class Test(NamedTuple):
    """Sentences, and how people translated them."""

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
    """Score and time both, and write that beside the student (`student.json`) and into its card.

    Both are decoded greedily, in int8 where the native core is installed; time is taken on one
    thread, beside CTranslate2 with the teacher where that is installed.

    Args:
        teacher: The large model.
        student: The small one, as it is shipped.
        tests: By name; time is taken on sentences of the first.
        seed: Chooses the sentences that the card shows.
        console: Where to say what is going on.
    """
    files = {f"{name}_{side}": getattr(test, side) for name, test in tests.items()
             for side in ("source", "reference")}  # fmt: skip
    path, about = student / RESULT, origin(student, **files)
    if path.is_file():
        before: dict[str, Any] = read_json(path, error=DataError)
        if all(before.get(key) == about[key] for key in ("weights_sha256", "data")):
            return before
    if console is not None:
        console.print("comparing the student with its teacher", highlight=False)
    dtype = choose_engine(None, None).dtype
    scores: dict[str, Any] = {}
    samples: list[tuple[str, ...]] = []
    dice = random.Random(seed)
    for name, test in tests.items():
        found, texts = _translate(dict(zip(SIDES, (teacher, student), strict=True)), test, dtype)
        for side, prefix in (("student", ""), ("teacher", "teacher_")):
            scores |= {f"{prefix}{name}_{key}": found[side][key] for key in ("bleu", "chrf")}
        rows = list(zip(read_lines(test.source), texts["teacher"], texts["student"], strict=True))
        samples += dice.sample(rows, min(len(rows), SHOWN // len(tests)))
    result = {
        "task": "student",
        **scores,
        "megabytes": megabytes(student),
        "teacher_megabytes": megabytes(teacher),
        "dtype": dtype,
        "speed": measure_speed(teacher, student, next(iter(tests.values()))),
        **about,
    }
    write_json(path, result)
    _describe(student / "README.md", result, tests, samples)
    return result


def _translate(
    models: Mapping[str, Path], test: Test, dtype: str
) -> tuple[dict[str, dict[str, float]], dict[str, list[str]]]:
    """Return what each scores, and what it said."""
    scores, texts = {}, {}
    with tempfile.TemporaryDirectory() as working:
        for side, folder in models.items():
            output = Path(working, side)
            found = evaluate_translation(
                folder,
                source=test.source,
                reference=test.reference,
                decode=DecodeConfig(),
                tokenize=test.tokenize,
                split=test.split,
                dtype=dtype,
                output=output,
            )
            scores[side] = {key: round(found["scores"][key], 2) for key in ("bleu", "chrf")}
            texts[side] = output.read_text("utf-8").split("\n")[:-1]
    return scores, texts


def megabytes(model: Path) -> float:
    """Measure a folder, all files together."""
    files = [one for one in model.rglob("*") if one.is_file()]
    return round(sum(one.stat().st_size for one in files) / 1e6, 2)


def measure_speed(teacher: Path, student: Path, test: Test) -> list[dict[str, Any]]:
    """Time both in turns with CTranslate2 on the teacher: greedy, one thread each."""
    engines = ["outrider-native-int8", "shallow-native-int8"]
    if find_spec("ctranslate2") is not None:
        engines.append("ctranslate2-int8")
    try:
        result = bench_model(
            teacher,
            choose_sentences(teacher, test.source, None, most=SENTENCES),
            settings(BATCHES, ("sorted",), [1], all_threads=True),
            engines=engines,
            repeats=REPEATS,
            shallow=student,
            limits=Limits(20.0, 600.0),
        )
    except OutriderError as error:  # a machine without the native core
        return [{"missing": str(error)}]
    rows = [row for row in result["rows"] if row["mode"] == "ar"]
    peer = {row["batch"]: row for row in rows if row["engine"] == "ctranslate2-int8"}
    return [
        {
            "engine": row["engine"].replace("outrider", "teacher").replace("shallow", "student"),
            "batch": row["batch"],
            "threads": row["threads"],
            "sentences_per_second": row["sentences_per_second"],
            "times_ctranslate2_int8_of_teacher": _times(row, peer.get(row["batch"])),
        }
        for row in rows
    ]


def _times(row: dict[str, Any], other: dict[str, Any] | None) -> float | None:
    if other is None:
        return None
    return round(float(row["sentences_per_second"] / other["sentences_per_second"]), 2)


def _describe(
    card: Path,
    result: dict[str, Any],
    tests: Mapping[str, Test],
    samples: list[tuple[str, ...]],
) -> None:
    """Write a section of the card, in the place of an earlier one."""
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
    timed = [row for row in result["speed"] if "missing" not in row]
    if timed:
        peer = "times CTranslate2 int8 with the teacher"
        yield f"| engine | batch | sentences a second, one thread | {peer} |"
        yield "|---|---:|---:|---:|"
    for row in timed:
        times = row["times_ctranslate2_int8_of_teacher"]
        shown = "" if times is None else f"{times:.2f}"
        yield f"| {row['engine']} | {row['batch']} | {row['sentences_per_second']:,.1f} | {shown} |"


def _in_a_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
