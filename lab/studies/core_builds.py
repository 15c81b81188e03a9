"""Two builds of the native core in turns, on one thread: speed, and equal tokens.

    pip install --no-deps --target OLD ./native      # at one commit, and at another:
    pip install --no-deps --target NEW ./native
    python lab/studies/core_builds.py OLD NEW MODEL --batches 1,8,32

Each build runs in its own process. Both encode and decode the same random sources, 30 tokens to 32,
in turns; tokens must be equal, and the median of all turns is printed.
"""

import argparse
import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import median

from outrider.runtime.provenance import machine

SOURCE, TARGET, TURNS = 30, 32, 12


def serve(model: Path) -> None:
    """Decode one batch per line of stdin; print total seconds, encoder seconds, and tokens."""
    from time import perf_counter

    from outrider.backends.native import NativeBackend
    from outrider.formats.folder import read_parts

    backend, dice = NativeBackend(read_parts(model), threads=1), random.Random(1)
    words = range(10, backend.vocab_size)
    sources = [dice.choices(words, k=SOURCE) for _ in range(256)]
    for line in sys.stdin:
        began = perf_counter()
        state = backend.encode(sources[: int(line)], capacity=TARGET + 2)
        encoded = perf_counter()
        newest, said = [backend.start] * int(line), 0
        for _ in range(0, TARGET, 16):
            forbidden = [*backend.ends, backend.pad]
            found = backend.greedy(newest, state, forbidden, steps=16, ends=())
            newest, said = [row[-1] for row in found], hash((said, *map(tuple, found)))
        print(perf_counter() - began, encoded - began, said, flush=True)


def main() -> None:
    """Compare two builds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--batches", default="1,8,32")
    given = parser.parse_args()
    processes = [_start(build, given.model) for build in (given.old, given.new)]
    here = machine()
    print(here.get("processor"), here.get("instructions"), os.environ.get("OUTRIDER_ISA", ""))
    for batch in map(int, given.batches.split(",")):
        turns = [[_ask(process, batch) for process in processes] for _ in range(TURNS)][2:]
        assert all(old[2] == new[2] for old, new in turns), "the builds say different things"
        for place, name in ((0, "all"), (1, "encoder")):
            old, new = (median(turn[side][place] for turn in turns) for side in (0, 1))
            print(f"batch {batch}, {name}: {old * 1e3:.1f} to {new * 1e3:.1f} ms, {old / new:.2f}x")


def _start(build: Path, model: Path) -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(build), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, __file__, "--serve", str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OUTRIDER_CACHE": "off"},
    )


def _ask(process: "subprocess.Popen[str]", batch: int) -> tuple[float, float, str]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{batch}\n")
    process.stdin.flush()
    whole, encoder, said = process.stdout.readline().split()
    return float(whole), float(encoder), said


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]))
    else:
        main()
