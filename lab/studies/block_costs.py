"""Cost of a plain step, a block of tokens and a draft, for each backend.

    python lab/studies/block_costs.py demo/en-de --json FILE

Minimum seconds for one row, in the order of a round: a draft, then the block that verifies it. They
determine the tokens per round from which drafting is faster.

The memory bandwidth of one core outside its caches is measured too: a step takes at least the time
to read its weights.
"""

import argparse
import math
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import outrider
from outrider.decoding import Backend
from outrider.decoding.queries import Argmax
from outrider.runtime.provenance import machine, versions, write_result

BLOCK = 8
"""Tokens drafted."""
HELD, SOURCE, TURNS = 12, 24, 9
"""Tokens of the text so far and of the source, and number of repeats."""
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
    """Return the GB per second at which numpy sums an array, from the fastest of many runs."""
    numbers, best = np.ones(MEGABYTES << 17, dtype=np.int64), math.inf
    for _ in range(300):
        began = perf_counter()
        numbers.sum()
        best = min(best, perf_counter() - began)
    return numbers.nbytes / best / 1e9


def _measure(model: Path, backend: str, threads: int, repeats: int) -> dict[str, Any]:
    loaded = outrider.load(model, backend=backend, threads=threads)
    costs = [_costs(loaded.backend) for _ in range(repeats)]
    step, block, draft = (1e3 * median(times) for times in zip(*costs, strict=True))
    return {
        "backend": backend,
        "threads": threads,
        "step": step,
        "block": block,
        "draft": draft,
        "even": (block + draft) / step,
    }


def _costs(backend: Backend) -> tuple[float, float, float]:
    """Return the minimum seconds of a step, a block and a draft, on the model's own text."""
    drafts, query = backend.drafts, Argmax()
    assert drafts is not None, "the model has no drafter"
    source, room = [[backend.eos] * SOURCE], HELD + BLOCK + 1
    state, text = backend.encode(source, capacity=room), [backend.start]
    while len(text) < room:
        text += backend.extend([text[-1:]], state, query).tokens[0]
    plain = backend.encode(source, capacity=room)
    drafted = backend.encode(source, capacity=room, drafting=True)
    for opened in (plain, drafted):
        backend.extend([text[:HELD]], opened, query)
    new, least = text[HELD:], [math.inf] * 3
    for _ in range(TURNS):
        times = [perf_counter()]
        backend.extend([new[:1]], plain, query)
        times.append(perf_counter())
        plain.rollback([HELD])
        began = perf_counter()
        drafts.draft(new[:1], drafted, [BLOCK])
        times.append(perf_counter())
        backend.extend([new], drafted, query)
        times.append(perf_counter())
        drafted.rollback([HELD])
        taken = times[1] - times[0], times[3] - times[2], times[2] - began
        least = [min(pair) for pair in zip(least, taken, strict=True)]
    return least[0], least[1], least[2]


if __name__ == "__main__":
    main()
