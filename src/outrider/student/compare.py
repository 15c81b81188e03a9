"""Teacher and student side by side: how well each translates, how large it is, how fast."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.bench.decode.plan import settings
from outrider.bench.decode.run import bench_model, choose_sentences
from outrider.bench.decode.speed import Limits
from outrider.decoding import DecodeConfig
from outrider.errors import DataError, OutriderError
from outrider.evaluation.config import EvaluateConfig
from outrider.evaluation.evaluate import evaluate_translation
from outrider.evaluation.origin import origin
from outrider.files import read_json, write_json, write_text
from outrider.formats.folder import model_files
from outrider.runtime.engine import choose_engine

__all__ = ["compare"]

RESULT = "student.json"
TITLE = "## Beside its teacher"
BATCHES, SENTENCES, REPEATS = (1, 32), 64, 3


def compare(
    teacher: Path, student: Path, test: EvaluateConfig, *, console: Console
) -> dict[str, Any]:
    """Score and time both, and write that beside the student and into its card.

    Both are decoded greedily, in int8 where the native core is installed, on one thread where time
    is taken; CTranslate2 runs the teacher as well where it is installed.

    Args:
        teacher: The large model.
        student: The small one.
        test: What they translate, and how BLEU is counted.
        console: Where to say what is going on.
    """
    assert test.source is not None
    assert test.reference is not None
    source, reference = Path(test.source), Path(test.reference)
    path, about = student / RESULT, origin(student, source=source, reference=reference)
    if path.is_file():
        before: dict[str, Any] = read_json(path, error=DataError)
        if all(before.get(key) == about[key] for key in ("weights_sha256", "data")):
            return before
    console.print("comparing the student with its teacher", highlight=False)
    dtype = choose_engine(None, None).dtype
    models = {}
    for name, folder in (("teacher", teacher), ("student", student)):
        found = evaluate_translation(
            folder,
            source=source,
            reference=reference,
            decode=DecodeConfig(),
            tokenize=test.tokenize,
            split=test.split,
            dtype=dtype,
        )
        models[name] = {key: found["scores"][key] for key in ("bleu", "chrf")} | _size(folder)
    result = {
        "task": "student",
        "dtype": dtype,
        **models,
        "speed": _speed(teacher, student, source, reference),
        **about,
    }
    write_json(path, result)
    _describe(student / "README.md", result)
    return result


def _size(folder: Path) -> dict[str, float]:
    """Say how many weights a model has, in int8 a byte each, and how large its files are."""
    from outrider.models import load_model

    weights = sum(weight.numel() for weight in load_model(folder).parameters())
    disk = sum(one.stat().st_size for one in model_files(folder) if one.is_file())
    return {"weights": weights, "megabytes_on_disk": round(disk / 1e6, 2)}


def _speed(teacher: Path, student: Path, source: Path, reference: Path) -> list[dict[str, Any]]:
    engines = ["outrider-native-int8", "shallow-native-int8"]
    if find_spec("ctranslate2") is not None:
        engines.append("ctranslate2-int8")
    try:
        result = bench_model(
            teacher,
            choose_sentences(teacher, source, reference, most=SENTENCES),
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
            "engine": row["engine"].replace("shallow", "student"),
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


def _describe(card: Path, result: dict[str, Any]) -> None:
    """Write a section of the card, in the place of an earlier one."""
    lines = [
        TITLE,
        "",
        f"Greedy, {result['dtype']}, {result['data']['source']['file']}.",
        "",
        "| | BLEU | chrF | million weights |",
        "|---|---:|---:|---:|",
    ]
    for name in ("teacher", "student"):
        one = result[name]
        size = f"{one['weights'] / 1e6:.1f}"
        lines.append(f"| {name} | {one['bleu']:.2f} | {one['chrf']:.2f} | {size} |")
    timed = [row for row in result["speed"] if "missing" not in row]
    if timed:
        lines += ["", "| engine | batch | sentences a second, one thread | times CTranslate2 |"]
        lines.append("|---|---:|---:|---:|")
    for row in timed:
        times = row["times_ctranslate2_int8_of_teacher"]
        shown = "" if times is None else f"{times:.2f}"
        speed = f"{row['sentences_per_second']:,.1f}"
        lines.append(f"| {row['engine']} | {row['batch']} | {speed} | {shown} |")
    machine = result["machine"]
    sets = ", ".join(machine.get("instructions", []))
    lines += ["", f"Machine: {machine.get('processor', '')} ({sets}).", ""]
    before = card.read_text(encoding="utf-8").split(TITLE)[0].rstrip() if card.is_file() else ""
    write_text(card, before + "\n\n" + "\n".join(lines))
