"""Sentences of Chinese texts, with the genre of each text.

    python examples/pairs/genres.py --text CORPORA/zh_text --out runs/genres/text

`--text` is a folder of gzipped files, one sentence per line.
"""

import argparse
import gzip
import random
from pathlib import Path

from corpus import write

KINDS = {
    "law": "prc-laws",
    "report": "gov-work-reports",
    "recipe": "howtocook",
    "talk": "kdconv",
    "software": "kubernetes",
    "everyday": "tatoeba",
}
EACH, TEST = 2500, 100
LONGEST = 120
"""Length of a sentence in characters."""


def sentences(path: Path, dice: random.Random) -> list[str]:
    """Distinct sentences of a file, within the length limits."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found = {line.strip().replace("\t", " ") for line in file}
    kept = sorted(line for line in found if 6 <= len(line) <= LONGEST)
    return dice.sample(kept, min(len(kept), EACH + TEST))


def main() -> None:
    """Write the same number of sentences of each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True, help="folder with the files")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    given, dice = parser.parse_args(), random.Random(1)
    train, test = [], []
    for kind, name in KINDS.items():
        rows = [(line, kind) for line in sentences(given.text / f"{name}.zh.gz", dice)]
        test += rows[:TEST]
        train += rows[TEST:]
    for part in (train, test):
        dice.shuffle(part)
    write(given.out, train, test)


if __name__ == "__main__":
    main()
