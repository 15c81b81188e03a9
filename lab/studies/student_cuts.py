"""Score, size and speed of each cut of a teacher before training.

    python lab/studies/student_cuts.py MODEL PAIRS --source FILE --reference FILE --json OUT.json

PAIRS are prepared pairs of the teacher, such as the `work/translated` of `outrider student`. Every
cut is `outrider shrink` with the arguments in its row, written as by `outrider export --dtype int8`
and compared with the teacher as in `outrider student`: greedy int8, one thread, CTranslate2 with
the teacher as the peer. `--rows 1,6` measures only some of them.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.files import write_json
from outrider.runtime.provenance import machine
from outrider.torch.compress.student import shrink
from outrider.torch.compress.student.compare import Test, compare
from outrider.torch.export import export_copy

EMBEDDINGS, FEEDFORWARD = ["embeddings"], ["feedforward"]
CUTS: tuple[dict[str, Any], ...] = (
    {"int4": EMBEDDINGS},
    {"int4": FEEDFORWARD},
    {"words": 20_000, "int4": EMBEDDINGS},
    {"words": 20_000, "layers": {"decoder": [0, 1, 2, 4, 5]}, "int4": EMBEDDINGS},
    {"words": 20_000, "feedforward": 1024, "int4": EMBEDDINGS},
    {"words": 20_000},
    {"words": 16_000},
    {"words": 14_000},
    {"words": 12_000},
    {"feedforward": 1536},
    {"feedforward": 1024},
    {"feedforward": 768},
    {"layers": {"encoder": 5}},
    {"layers": {"encoder": 4}},
    {"layers": {"decoder": 5}},
    {"layers": {"decoder": 4}},
    {"layers": {"decoder": 3}},
    {"layers": {"decoder": 2}},
    {"layers": {"encoder": 4, "decoder": 4}, "words": 14_000, "positions": 512},
    {"layers": {"decoder": [0, 1, 3, 4, 5]}, "feedforward": 1024, "words": 15_000},
)


def main() -> None:
    """Make each cut, compare it, and write the results so far."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--rows", help="numbers of cuts, from 1; by default all")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    chosen = range(1, len(CUTS) + 1) if given.rows is None else map(int, given.rows.split(","))
    console, rows = Console(), list[dict[str, Any]]()
    tests = {"test": Test(given.source, given.reference)}
    for cut in (CUTS[number - 1] for number in chosen):
        data = None if cut == {"int4": EMBEDDINGS} else given.pairs  # this cut needs no data
        with tempfile.TemporaryDirectory() as working:
            folder = shrink(given.model, Path(working, "cut"), **cut, data=data, console=console)
            int4 = cut.get("int4", ())
            small = export_copy(folder, Path(working, "small"), dtype="int8", int4=int4)
            found = compare(given.model, small, tests, console=console)
        rows.append({"cut": cut, **_figures(found)})
        console.print(rows[-1], highlight=False)
        teacher = _figures(found, "teacher")
        about = {"data": found["data"], "machine": machine()}
        write_json(given.json, {"teacher": teacher, "rows": rows, **about})


def _figures(found: dict[str, Any], side: str = "student") -> dict[str, Any]:
    """Return score, size and speed-up of one of the two."""
    prefix = "" if side == "student" else "teacher_"
    speeds = [row for row in found["speed"] if row.get("engine", "").startswith(side)]
    return {
        "bleu": found[f"{prefix}test_bleu"],
        "chrf": found[f"{prefix}test_chrf"],
        "megabytes": found[f"{prefix}megabytes"],
        "times_ctranslate2": {
            str(row["batch"]): row["times_ctranslate2_int8_of_teacher"] for row in speeds
        },
    }


if __name__ == "__main__":
    main()
