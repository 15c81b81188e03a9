"""Time of the first tandem sentence in a new process, relative to plain decoding.

    python lab/studies/first_sentence.py demo/en-de --source test.en.gz --json FILE

New processes take turns: each loads the model, translates one sentence, then nine more, and prints
both times. Ratios are those of consecutive processes.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import outrider
from outrider.errors import ModelError
from outrider.runtime import Translator

SENTENCES = 10
MODES = ("ar", "tandem")


def main() -> None:
    """Measure every model, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--source", type=Path, required=True, help="a text, one sentence per line")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--processes", type=int, default=10, help="processes per mode")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mode is not None:
        print(json.dumps(_translate(options)))
        return
    # Imported here, because the timed processes do not need it.
    from outrider.data.lines import text_lines
    from outrider.runtime.provenance import machine, versions, write_result

    lines = [line for line in text_lines(options.source) if line.strip()][:SENTENCES]
    print("| model | first sentence, plain | tandem | ratio | whole process | ten sentences |")
    print("|---|---|---|---|---|---|")
    rows = [_measure(model, lines, options) for model in options.models]
    for row in rows:
        parts = [f"{row[key]['ratio']:.2f}" for key in ("first", "process", "ten")]
        times = [f"{1e3 * row['first'][mode]:.1f} ms" for mode in MODES]
        print("|", " | ".join((row["model"], *times, *parts)), "|")
    if options.json is not None:
        about = {
            "task": "first sentence",
            "source": options.source.name,
            "backend": options.backend,
            "threads": options.threads,
            "processes": options.processes,
            "rows": rows,
        }
        write_result(options.json, {**about, "machine": machine(), "versions": versions()})


def _translate(options: argparse.Namespace) -> dict[str, float]:
    """Translate in this process; return the seconds of the first sentence and of all ten."""
    lines = json.load(sys.stdin)
    model = outrider.load(options.models[0], backend=options.backend, threads=options.threads)
    if not isinstance(model, Translator):
        raise ModelError(f"{options.models[0]}: is not a translation model")
    began, seconds = perf_counter(), []
    for line in lines:
        model.translate(line, mode=options.mode)
        seconds.append(perf_counter() - began)
    return {"first": seconds[0], "ten": seconds[-1], "warm": seconds[-1] - seconds[0]}


def _measure(model: Path, lines: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Run processes of both modes in turns; return medians, and the medians of the ratios."""
    seen: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for turn in range(options.processes + 1):
        for mode in MODES if turn % 2 else MODES[::-1]:
            command = [sys.executable, __file__, str(model), "--source", str(options.source)]
            command += ["--backend", options.backend, "--threads", str(options.threads)]
            began = perf_counter()
            command += ["--mode", mode]
            answer = subprocess.run(
                command, check=True, input=json.dumps(lines), stdout=subprocess.PIPE, text=True
            )
            found = {**json.loads(answer.stdout), "process": perf_counter() - began}
            if turn:  # the first pair loads files into the page cache
                seen[mode].append(found)
    result: dict[str, Any] = {"model": model.name}
    for key in ("first", "ten", "warm", "process"):
        plain, tandem = ([one[key] for one in seen[mode]] for mode in MODES)
        ratios = [ours / theirs for ours, theirs in zip(tandem, plain, strict=True)]
        result[key] = {
            "ar": median(plain),
            "tandem": median(tandem),
            "ratio": median(ratios),
            "ratios": ratios,
        }
    return result


if __name__ == "__main__":
    main()
