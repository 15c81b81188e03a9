"""Shared code of the example pairs: random generation, and files of sources and targets."""

import argparse
import random
from collections.abc import Callable, Iterable
from pathlib import Path

TRAIN, TEST = 8000, 500
"""Default numbers of pairs."""
Pair = tuple[str, str]


def write(folder: Path, train: Iterable[Pair], test: Iterable[Pair]) -> None:
    """Write train.tsv, test.source and test.target, line by line."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in train), "utf-8")
    rows = list(test)
    for name, side in (("source", 0), ("target", 1)):
        (folder / f"test.{name}").write_text("".join(f"{row[side]}\n" for row in rows), "utf-8")


def make(what: str, draw: Callable[[random.Random], Pair], *, train: int = TRAIN) -> None:
    """Generate distinct training and test pairs, and write them to --out."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    out = parser.parse_args().out
    dice, seen = random.Random(1), set[Pair]()
    while len(seen) < train + TEST:
        seen.add(draw(dice))
    pairs = sorted(seen)
    dice.shuffle(pairs)
    write(out, pairs[TEST:], pairs[:TEST])
