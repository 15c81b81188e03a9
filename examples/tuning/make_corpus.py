"""Extract some sources from a parallel corpus and split them into train, valid and test.

    python make_corpus.py CORPORA/en_zh_parallel OUT [--source python-docs react:5000]

The folder contains `train.en.gz`, `train.zh.gz` and `train.source.gz`, which names the source of
each line; `react:5000` takes the first 5,000 pairs of a source. All pairs with the same English
text are in the same split, chosen by a checksum of that text, so no test sentence occurs in
training and the split is the same on every machine.
"""

import argparse
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

SHARE = 50
"""One text in this many is for validation, and one for the test."""


def main() -> None:
    """Write six files, and print the number of pairs of each split."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--source", nargs="+", default=["python-docs"])
    arguments = parser.parse_args()
    named = (text.partition(":") for text in arguments.source)
    found = cut(arguments.corpus, {name: int(most or 1 << 60) for name, _, most in named})
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, pairs in found.items():
        for side, lines in zip(("en", "zh"), zip(*pairs, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in lines)
            (arguments.out / f"{name}.{side}").write_text(text, encoding="utf-8")
        print(f"{name}: {len(pairs)} pairs")


def cut(corpus: Path, most: dict[str, int]) -> dict[str, list[tuple[str, str]]]:
    """Return the pairs of some sources by split, limited per source."""
    left = dict(most)
    found: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    names = {0: "valid", 1: "test"}
    for english, chinese, name in zip(
        *(read(corpus / f"train.{part}.gz") for part in ("en", "zh", "source")), strict=True
    ):
        if left.get(name, 0) > 0:
            left[name] -= 1
            place = zlib.crc32(english.encode()) % SHARE
            found[names.get(place, "train")].append((english, chinese))
    for name, number in most.items():
        if left[name] == number:
            raise SystemExit(f"{corpus}: has no pairs of {name!r}")
    return found


def read(path: Path) -> Iterator[str]:
    """Yield the lines of a gzipped file."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.rstrip("\n")


if __name__ == "__main__":
    main()
