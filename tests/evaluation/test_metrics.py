"""Metrics of answers, labels and summaries against the libraries and papers that define them."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from outrider.errors import ConfigError, InputError, MissingExtraError
from outrider.evaluation.metrics import METRICS, check_metrics, score

LABELS = st.sampled_from(["law", "recipe", "talk", ""])


@given(st.lists(st.tuples(LABELS, LABELS), min_size=1, max_size=30))
def test_labels_are_scored_as_scikit_learn_does(pairs: list[tuple[str, str]]) -> None:
    said, right = [a for a, _ in pairs], [b for _, b in pairs]
    found = score(["accuracy", "macro_f1"], said, right)
    labels = sorted(set(right))
    wanted = f1_score(right, said, labels=labels, average="macro", zero_division=0)
    assert found["macro_f1"] == pytest.approx(100 * wanted)
    assert found["accuracy"] == pytest.approx(100 * accuracy_score(right, said))


@pytest.mark.parametrize(
    ("said", "right", "exact", "f1"),
    [
        ("The Eiffel Tower.", "eiffel tower", 1, 1),
        ("in 1889", "1889", 0, 2 / 3),
        ("a dog and a cat", "the cat, the dog", 0, 4 / 5),
        ("no", "yes", 0, 0),
        ("", "", 1, 1),
        ("the", "", 1, 1),
        ("", "yes", 0, 0),
        ("dog dog", "dog", 0, 2 / 3),
    ],
)
def test_answers_are_scored_as_squad_does(said: str, right: str, exact: int, f1: float) -> None:
    found = score(["exact_match", "token_f1"], [said], [right])
    assert found["exact_match"] == 100 * exact
    assert found["token_f1"] == pytest.approx(100 * f1)


def test_rouge() -> None:
    found = score(["rouge"], ["the cat sat on the mat"], ["the cat lay on the mat"])
    assert found["rouge1"] == pytest.approx(100 * 5 / 6)
    assert found["rouge2"] == pytest.approx(100 * 3 / 5)
    assert found["rougeLsum"] == pytest.approx(100 * 5 / 6)


def test_only_requested_metrics_are_computed() -> None:
    texts = ["two men play football in the park"]
    assert score(["bleu"], texts, texts)["bleu"] == pytest.approx(100)
    both = score(["chrf", "accuracy"], texts, texts)
    assert both.keys() == {"chrf", "chrf_signature", "accuracy", "sentences"}
    assert score(list(METRICS), texts, texts).keys() >= {"bleu", "rouge1", "macro_f1", "token_f1"}


def test_an_unknown_metric_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"metrics: unknown 'rogue' .did you mean 'rouge'"):
        check_metrics(["bleu", "rogue"])
    with pytest.raises(ConfigError, match="metrics: is empty"):
        check_metrics([])
    with pytest.raises(InputError, match="1 texts against 2 references"):
        score(["accuracy"], ["a"], ["a", "b"])
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(MissingExtraError, match=r"outrider\[rouge\]"):
        check_metrics(["rouge"])
