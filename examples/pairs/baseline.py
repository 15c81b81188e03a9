"""Score of the most frequent training target, given as every answer.

    python examples/pairs/baseline.py runs/questions/text --metric exact_match,token_f1

A model with a higher score uses its source.
"""

import argparse
from collections import Counter
from pathlib import Path

from outrider.evaluation.metrics import score


def main() -> None:
    """Print the score."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="output folder of a pair generator")
    parser.add_argument(
        "--metric", required=True, help="metrics of outrider evaluate, comma-separated"
    )
    given = parser.parse_args()
    rows = (given.folder / "train.tsv").read_text("utf-8").splitlines()
    answer, _ = Counter(row.split("\t")[1] for row in rows).most_common(1)[0]
    references = (given.folder / "test.target").read_text("utf-8").splitlines()
    print(f"always {answer!r}")
    scores = score(given.metric.split(","), [answer] * len(references), references)
    for name, value in scores.items():
        print(f"{name}: {value:.1f}" if isinstance(value, float) else f"{name}: {value}")


if __name__ == "__main__":
    main()
