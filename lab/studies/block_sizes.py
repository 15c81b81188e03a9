"""Cost of a block of n tokens relative to one step.

    python lab/studies/block_sizes.py MODEL --isa avx2,avx512,vnni --json FILE

A chain of 8 drafts needs blocks of 9 tokens; a tree with several tokens per position needs larger
ones. A tree pays only where these cost little more. One text at a time, int8, one thread, minimum
of many interleaved turns; the state is that of half a sentence.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from outrider.decoding.protocol import Backend
from outrider.decoding.queries import Argmax, Nothing
from outrider.runtime import load
from outrider.runtime.provenance import machine, versions, write_result

SIZES = (1, 2, 3, 5, 7, 9, 13, 17, 25, 33)
SOURCE, HELD = 24, 12
"""Tokens of the source, and of the target so far."""
TURNS = 60


def main() -> None:
    """Measure every instruction set in its own process, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--isa", default="", help="avx2,avx512,vnni,amx; by default the best")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(load(options.model, dtype="int8", threads=1).backend)))
        return
    rows = [{"isa": isa, "milliseconds": _apart(options.model, isa)} for isa in _sets(options.isa)]
    print(f"| set | step, ms | {' | '.join(f'{size} tokens' for size in SIZES[1:])} |")
    print(f"|---|---|{'---|' * (len(SIZES) - 1)}")
    for row in rows:
        step, *others = row["milliseconds"].values()
        print(f"| {row['isa']} | {step:.2f} | {' | '.join(f'{ms / step:.2f}' for ms in others)} |")
    if options.json is not None:
        about = {"task": "cost of blocks by size", "model": Path(options.model).name, "rows": rows}
        write_result(options.json, {**about, "machine": machine(), "versions": versions()})


def measure(backend: Backend) -> dict[str, float]:
    """Return the milliseconds of blocks by number of tokens."""
    source, room, text = [[backend.eos] * SOURCE], HELD + max(SIZES), [backend.start]
    state = backend.encode(source, capacity=room)
    while len(text) < room:  # the model's own output: a large head is slower on unlikely tokens
        text += backend.extend([text[-1:]], state, Argmax()).tokens[0]
    state = backend.encode(source, capacity=room)
    backend.extend([text[:HELD]], state, Nothing(), last=True)
    lengths, best = state.lengths, dict.fromkeys(SIZES, float("inf"))
    for _ in range(TURNS):
        for size in SIZES:
            began = perf_counter()
            backend.extend([text[HELD : HELD + size]], state, Argmax())
            best[size] = min(best[size], perf_counter() - began)
            state.rollback(lengths)
    return {str(size): seconds * 1e3 for size, seconds in best.items()}


def _sets(names: str) -> list[str]:
    return names.split(",") if names else [os.environ.get("OUTRIDER_ISA", "best")]


def _apart(model: str, isa: str) -> Any:
    """Measure in a process restricted to one instruction set."""
    environment = os.environ | ({} if isa == "best" else {"OUTRIDER_ISA": isa})
    command = [sys.executable, __file__, model, "--here"]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
