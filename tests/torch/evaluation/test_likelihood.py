"""Scores against their definitions."""

import math
from types import SimpleNamespace

import pytest
import sacrebleu
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from outrider.errors import InputError
from outrider.evaluation.metrics import score_translations
from outrider.torch.evaluation.likelihood import score_segments, score_text
from tests.helpers import tiny

REFERENCES = ["Ein Mann fährt Rad .", "Zwei Hunde spielen im Schnee ."]


def test_bleu_equals_sacrebleu_and_has_its_signature() -> None:
    hypotheses = ["Ein Mann fährt ein Rad .", "Zwei Hunde spielen im Gras ."]
    score = score_translations(hypotheses, REFERENCES)
    assert score.bleu == sacrebleu.corpus_bleu(hypotheses, [REFERENCES]).score
    assert score.chrf == sacrebleu.corpus_chrf(hypotheses, [REFERENCES]).score
    assert "tok:13a" in score.bleu_signature
    assert score.sentences == 2


def test_perfect_translations_score_100() -> None:
    score = score_translations(REFERENCES, REFERENCES)
    assert score.bleu == pytest.approx(100)
    assert score.chrf == pytest.approx(100)


def test_unequal_counts_are_refused() -> None:
    with pytest.raises(InputError, match="1 translations against 2 references"):
        score_translations(["a"], REFERENCES)


class Window(nn.Module):
    """Predicts from the last `reach` input tokens, so the given context matters."""

    def __init__(self, vocab: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.table = nn.Parameter(torch.randn(vocab, vocab))

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        vectors = self.table[input_ids]
        logits = vectors.clone()
        for back in range(1, self.reach):
            logits[:, back:] += vectors[:, :-back]
        return SimpleNamespace(logits=logits)


@settings(max_examples=30, deadline=None)
@given(
    length=st.integers(1, 60),
    context=st.integers(2, 20),
    batch=st.integers(1, 5),
    data=st.data(),
)
def test_every_token_is_predicted_once_with_enough_context(
    length: int, context: int, batch: int, data: st.DataObject
) -> None:
    """If the model's reach fits the overlap, windows do not change the score."""
    overlap = data.draw(st.integers(0, context - 1))
    torch.manual_seed(0)
    model = Window(7, reach=overlap + 1)
    tokens = torch.randint(7, (length,)).tolist()
    score = score_text(
        model, tokens, start=0, characters=length, context=context, overlap=overlap, batch=batch
    )
    logits = model(torch.tensor([[0, *tokens[:-1]]])).logits[0]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens)).item()
    assert score.nats_per_token == pytest.approx(expected, rel=1e-5)
    assert score.perplexity == pytest.approx(math.exp(expected), rel=1e-5)
    assert score.bits_per_character == pytest.approx(expected / math.log(2), rel=1e-5)
    assert score.tokens == length


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(InputError, match="the text holds no token"):
        score_text(Window(7, 1), [], start=0, characters=0, context=4, overlap=2)


def test_segments_with_a_memory_predict_each_token_once() -> None:
    """Equal to one long pass under a local pattern, compared by the summed nats."""
    model = tiny.language_model(
        position="relative", memory=8, max_positions=4, layers=1, dtype=torch.float64
    )
    tokens = torch.randint(4, tiny.VOCABULARY, (11,)).tolist()
    score = score_segments(model, tokens, start=3, characters=22, words=5, segment=4, memory=20)
    inputs, targets = torch.tensor([[3, *tokens[:-1]]]), torch.tensor(tokens)
    with torch.no_grad():  # a window of 12 covers all 11 tokens
        nats = torch.nn.functional.cross_entropy(
            model(input_ids=inputs).logits[0], targets, reduction="sum"
        ).item()
    assert score.nats_per_token == pytest.approx(nats / 11, rel=1e-6)
    assert score.perplexity_per_word == pytest.approx(math.exp(nats / 5), rel=1e-6)
    assert score.words == 5
