"""What a plain step, a block of tokens and a draft cost, for each backend that computes a model.

    python benchmarks/block_costs.py demo/en-de --json FILE

The seconds are those that tandem decoding plans with (`decoding.policy`), for one row. Whether
drafting pays follows from them: a round costs a draft and a block, and brings some tokens.

How fast one core reads memory that does not fit its own caches is measured beside them: a step
takes at least as long as reading its weights.
"""

import argparse
import math
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import outrider
from outrider.decoding.policy import DraftPolicy
from outrider.evaluation.results import machine, versions, write_result

BLOCK = 8
"""Tokens drafted."""
MEGABYTES = 8
"""About as many as a step and a draft of a small model read."""


def main() -> None:
    """Measure every backend at one and two threads, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rows = [
        _measure(options.model, backend, threads, options.repeats)
        for backend in ("native", "torch")
        for threads in (1, 2)
    ]
    reading = _reading()
    print(f"one core reads {MEGABYTES} MB at {reading:.1f} GB/s")
    print(
        "| backend | threads | step, ms | block of 9, ms | draft of 8, ms | tokens to break even |"
    )
    print("|---|---|---|---|---|---|")
    for row in rows:
        figures = " | ".join(f"{row[key]:.3f}" for key in ("step", "block", "draft", "even"))
        print(f"| {row['backend']} | {row['threads']} | {figures} |")
    if options.json is not None:
        about = {
            "task": "cost of blocks",
            "model": options.model.name,
            "rows": rows,
            "read_gb_per_second": reading,
        }
        write_result(options.json, {**about, "machine": machine(), "versions": versions()})
        print(f"wrote {options.json}")


def _reading() -> float:
    """Return the GB a second at which numpy sums up numbers, in the fastest of many turns."""
    numbers, best = np.ones(MEGABYTES << 17, dtype=np.int64), math.inf
    for _ in range(300):
        began = perf_counter()
        numbers.sum()
        best = min(best, perf_counter() - began)
    return numbers.nbytes / best / 1e9


def _measure(model: Path, backend: str, threads: int, repeats: int) -> dict[str, Any]:
    loaded = outrider.load(model, backend=backend, threads=threads)
    costs = [DraftPolicy.measure(loaded.backend).costs(1) for _ in range(repeats)]
    step = median(one.plain for one in costs) * 1e3
    block = median(one.extend[BLOCK] for one in costs) * 1e3
    draft = median(one.draft[BLOCK - 1] for one in costs) * 1e3
    return {
        "backend": backend,
        "threads": threads,
        "step": step,
        "block": block,
        "draft": draft,
        "even": (block + draft) / step,
    }


if __name__ == "__main__":
    main()
