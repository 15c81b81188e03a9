"""Which of several translations the others agree with most (minimum Bayes risk decoding).

    best = argmax_a  mean_{b != a}  chrF(a, b)

chrF (Popovic, 2015) is computed as sacreBLEU does: groups of one to six letters without blanks,
recall counted twice as much as precision.
"""

from collections import Counter
from collections.abc import Sequence

__all__ = ["choose_by_consensus", "chrf"]

ORDERS, BETA = 6, 2.0

Counts = list[Counter[str]]


def choose_by_consensus(texts: Sequence[str]) -> int:
    """Return the place of the text that is most like the others; of equals the first."""
    if len(set(texts)) == 1:
        return 0
    counts = {text: _count(text) for text in texts}
    pairs = {(a, b): _chrf(counts[a], counts[b]) for a in counts for b in counts}
    means = [sum(pairs[a, b] for b in texts) - pairs[a, a] for a in texts]
    return max(range(len(texts)), key=lambda place: (means[place], -place))


def chrf(hypothesis: str, reference: str) -> float:
    """Return chrF of one text, from 0 to 100."""
    return 100 * _chrf(_count(hypothesis), _count(reference))


def _count(text: str) -> Counts:
    letters = "".join(text.split())
    return [
        Counter(letters[at : at + order] for at in range(len(letters) - order + 1))
        for order in range(1, ORDERS + 1)
    ]


def _chrf(hypothesis: Counts, reference: Counts) -> float:
    """The mean over the orders that both sides have."""
    precision = recall = 0.0
    orders = 0
    for said, wanted in zip(hypothesis, reference, strict=True):
        total_said, total_wanted = said.total(), wanted.total()
        if not total_said or not total_wanted:
            continue
        fewer, more = (said, wanted) if len(said) < len(wanted) else (wanted, said)
        shared = sum(min(count, more[group]) for group, count in fewer.items())
        precision += shared / total_said
        recall += shared / total_wanted
        orders += 1
    if not precision + recall:
        return 0.0
    precision, recall = precision / orders, recall / orders
    return (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)
