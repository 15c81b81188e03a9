"""Effect of each part of a student's recipe: layers, vocabulary, filter, augmentation and text.

    python lab/studies/student_parts.py CONFIG [OVERRIDE ...] --out FOLDER --json FILE

The config is trained on little text, `--sentences` of it for `--steps` updates, and again for every
part with only that part changed. Each model is scored on the first `--lines` of the config's
`tests`, greedy int8, before and after training; and on the last test again with augmented lines. At
the end students of other shapes are timed, in turns with CTranslate2 on the teacher. The same
command resumes an interrupted study.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.config import load_config
from outrider.data.augment import change_all
from outrider.data.lines import text_lines
from outrider.errors import DataError
from outrider.evaluation.metrics import score_translations
from outrider.files import read_json
from outrider.files.hub import model_folder
from outrider.runtime import Translator, load
from outrider.runtime.provenance import machine, versions, write_result
from outrider.torch.compress.student import StudentConfig, train_student
from outrider.torch.compress.student.compare import Test, measure_speed, megabytes
from outrider.torch.compress.student.run import corpus_root

AUGMENT = "{final_mark: 0.05, typos: 0.05, joined: 0.1, placeholders: 0.05}"
UNFILTERED = "{max_ratio: null, drop_equal: false, max_repeats: null, drop_duplicates: false}"
PARTS: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "all layers of the decoder": ("shape.decoder=null",),
    "four layers of the decoder": ("shape.decoder=[0, 1, 4, 5]",),
    "12,000 words": ("shape.words=12000",),
    "no filter": (f"clean={UNFILTERED}",),
    "augmentation": (f"train.augment={AUGMENT}",),
    "no probabilities of the teacher": ("word_level=0",),
    "half of the text": (),
    "a quarter of the text": (),
}
SHARES = {"half of the text": 2, "a quarter of the text": 4}
TIMED = {"as it is", "all layers of the decoder", "four layers of the decoder", "12,000 words"}
"""The others have the speed of the first."""
CHANGED = ("final_mark", "typos", "joined", "placeholders")
"""Augmentation by kind; Chinese has no capitals."""


def main() -> None:
    """Train each, score it, and write the results so far; then time those of other shapes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--out", type=Path, required=True, help="folder for the students")
    parser.add_argument("--sentences", type=int, default=12_000)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--lines", type=int, default=400)
    parser.add_argument("--parts", help="numbers of parts, from 0; by default all")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    chosen = range(len(PARTS)) if given.parts is None else map(int, given.parts.split(","))
    console, rows = Console(), list[dict[str, Any]]()
    if given.json.is_file():
        rows = read_json(given.json, error=DataError)["rows"]
    configs = {[*PARTS][number]: _config(given, number) for number in chosen}
    for name, config in configs.items():
        if any(row["part"] == name for row in rows):
            continue
        assert isinstance(config.teacher, str)
        tests = {test: pairs[: given.lines] for test, pairs in _tests(config).items()}
        if not rows:
            rows.append({"part": "the teacher", "scores": _scores(config.teacher, tests)})
        small = train_student(config.model_copy(update={"tests": {}}), console=console)
        start = Path(config.folder, "start")
        plain = {test: pairs for test, pairs in tests.items() if test in config.tests}
        row: dict[str, Any] = {
            "part": name,
            "changes": [*PARTS[name]],
            "sentences": config.sentences,
        }
        row |= {"before": _scores(start, plain), "scores": _scores(small, tests)}
        rows.append(row | {"megabytes": megabytes(small)})
        console.print(rows[-1], highlight=False)
        _write(given, rows)
    for row in rows:
        if row["part"] in TIMED & configs.keys() and "times_ctranslate2" not in row:
            row["times_ctranslate2"] = _times(configs[row["part"]])
            console.print(row["part"], row["times_ctranslate2"], highlight=False)
            _write(given, rows)


def _config(given: argparse.Namespace, number: int) -> StudentConfig:
    """Return the config of one part: little text, few updates, and that part changed."""
    name = [*PARTS][number]
    steps, sentences = given.steps, given.sentences // SHARES.get(name, 1)
    train = {"steps": steps, "warmup": steps // 10, "batch_tokens": given.batch_tokens}
    train |= {"save_every": steps // 5, "evaluate_every": steps}
    return load_config(
        StudentConfig,
        given.config,
        [
            *given.overrides,
            *(f"train.{key}={value}" for key, value in train.items()),
            f"folder={given.out / str(number)}",
            f"work={given.out / f'text-{sentences}'}",
            f"sentences={sentences}",
            *PARTS[name],
        ],
    )


def _write(given: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    settings = {"steps": given.steps, "batch_tokens": given.batch_tokens, "lines": given.lines}
    result = {"task": "parts of a student", **settings, "rows": rows}
    write_result(given.json, {**result, "machine": machine(), "versions": versions()})


def _tests(config: StudentConfig) -> dict[str, list[tuple[str, str]]]:
    """Read the tests, and augment the lines of the last in every way."""
    root, found = corpus_root(config), {}
    for name, test in config.tests.items():
        sides = [text_lines(root.path(path)) for path in (test.source, test.reference)]
        found[name] = list(zip(*sides, strict=True))
    last = found[[*config.tests][-1]]
    return found | {kind: change_all(last, kind) for kind in CHANGED}


def _times(config: StudentConfig) -> dict[str, float | None]:
    """Time a student in turns with CTranslate2 on its teacher, one thread each."""
    assert isinstance(config.teacher, str)
    root, first = corpus_root(config), next(iter(config.tests.values()))
    test = Test(root.path(first.source), root.path(first.reference))
    found = measure_speed(model_folder(config.teacher), Path(config.folder, "small"), test)
    return {
        str(row["batch"]): row["times_ctranslate2_int8_of_teacher"]
        for row in found
        if row.get("engine", "").startswith("student")
    }


def _scores(
    folder: str | Path, tests: Mapping[str, Sequence[tuple[str, str]]]
) -> dict[str, dict[str, float]]:
    """Translate and score every test."""
    translator = load(model_folder(folder), dtype="int8", threads=1)
    assert isinstance(translator, Translator)
    found = {}
    for name, pairs in tests.items():
        sources, references = zip(*pairs, strict=True)
        texts = translator.translate(sources, split=False if name in CHANGED else None)
        score = score_translations(texts, references)
        found[name] = {"bleu": round(score.bleu, 2), "chrf": round(score.chrf, 2)}
    return found


if __name__ == "__main__":
    main()
