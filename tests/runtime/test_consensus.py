"""Consensus: chrF as in sacreBLEU, and the text with the highest mean similarity to the others."""

from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF

from outrider.jobs.teacher import choose_by_consensus, chrf

TEXTS = st.lists(st.sampled_from(["the", "cat", "cats", "sat", "\u4f60\u597d", "."])).map(" ".join)


@given(TEXTS, TEXTS.filter(bool))
def test_chrf_is_that_of_sacrebleu(hypothesis: str, reference: str) -> None:
    expected = CHRF().sentence_score(hypothesis, [reference]).score
    assert abs(chrf(hypothesis, reference) - expected) < 1e-9


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_the_choice_is_the_one_with_the_best_mean(texts: list[str]) -> None:
    means = [
        sum(chrf(text, other) for n, other in enumerate(texts) if n != place)
        for place, text in enumerate(texts)
    ]
    assert max(means) - means[choose_by_consensus(texts)] < 1e-6


def test_the_first_of_equal_texts_is_chosen() -> None:
    assert choose_by_consensus(["same", "same", "same"]) == 0
    assert choose_by_consensus(["one", "a cat sat", "two", "a cat sat"]) == 1
