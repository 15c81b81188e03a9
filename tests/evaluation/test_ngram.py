"""Kneser-Ney against its equations; the probabilities of all tokens sum to one."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError, InputError
from outrider.evaluation.ngram import NgramModel

TEXTS = st.lists(st.integers(0, 4), min_size=3, max_size=40)


@given(tokens=TEXTS, order=st.integers(1, 3), before=st.lists(st.integers(0, 5), max_size=4))
def test_probabilities_of_all_words_sum_to_one(
    tokens: list[int], order: int, before: list[int]
) -> None:
    model = NgramModel(tokens, order=order, vocab_size=7)
    found = [model.probability(word, before) for word in range(7)]
    assert sum(found) == pytest.approx(1)
    assert min(found) > 0


@given(tokens=TEXTS, word=st.integers(0, 5), last=st.integers(0, 5))
def test_bigrams_by_the_equation(tokens: list[int], word: int, last: int) -> None:
    pairs = Counter((tokens[at], tokens[at + 1]) for at in range(len(tokens) - 1))
    befores = Counter(b for _, b in pairs)  # the number of different predecessors of a token

    def discount(counts: Counter) -> float:  # type: ignore[type-arg]
        once = sum(count == 1 for count in counts.values())
        twice = sum(count == 2 for count in counts.values())
        return once / (once + 2 * twice) if once else 0.5

    low, high = discount(befores), discount(pairs)
    all_places = sum(befores.values())
    alone = (max(befores[word] - low, 0) + low * len(befores) / 7) / all_places
    follows = {b: count for (a, b), count in pairs.items() if a == last}
    seen = sum(follows.values())
    wanted = alone
    if seen:
        wanted = (max(follows.get(word, 0) - high, 0) + high * len(follows) * alone) / seen
    model = NgramModel(tokens, order=2, vocab_size=7)
    assert model.probability(word, [3, last]) == pytest.approx(wanted)


def test_the_training_text_is_more_likely_than_another() -> None:
    text = [1, 2, 3, 4] * 30
    model = NgramModel(text, order=3, vocab_size=10)
    assert model.nats(text, start=0) / len(text) < 0.2
    assert model.nats([4, 3, 2, 1] * 30, start=0) / len(text) > 2
    assert NgramModel([5] * 9, order=1, vocab_size=10).nats([5], start=0) < math.log(10)


def test_too_short_texts_are_refused() -> None:
    with pytest.raises(ConfigError, match="order: got 0"):
        NgramModel([1, 2], order=0, vocab_size=3)
    with pytest.raises(InputError, match="2 tokens are too few for n-grams of order 3"):
        NgramModel([1, 2], order=3, vocab_size=3)
