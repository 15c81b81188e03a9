"""Penalties of attentions count once per update, and only in training."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outrider.torch.models.base import Model
from outrider.torch.training.kinds.language_model import LanguageModelObjective
from outrider.torch.training.objective import Objective
from tests.helpers.tiny import VOCABULARY, language_model, seq2seq

SPEC = {"kind": "adaptive_span", "max_span": 10, "ramp": 2, "penalty": 0.25}


def batch(rows: int) -> dict[str, Tensor]:
    tokens = torch.randint(4, VOCABULARY, (rows, 7), generator=torch.manual_seed(rows))
    return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


CASES: dict[str, tuple[Objective, Callable[..., Model], str]] = {
    "language_model": (LanguageModelObjective(), language_model, "attention"),
    "translation": (Objective(), seq2seq, "decoder_attention"),
}


def update(objective: Objective, model: torch.nn.Module, rows: list[int]) -> Tensor:
    """The loss summed over the batches of one update, as in the trainer."""
    batches = [batch(n) for n in rows]
    divisor = float(sum(objective.count(one) for one in batches))
    losses = [objective.loss(model, one, divisor=divisor, smoothing=0.0) for one in batches]
    return torch.stack(losses).sum()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [[4], [1, 3], [2, 1, 5]])
def test_counts_once_per_update(case: str, rows: list[int]) -> None:
    objective, make, key = CASES[case]
    losses = []
    for penalty in (0.25, 0.0):
        model = make(dtype=torch.float64, **{key: SPEC | {"penalty": penalty}}).train()
        for name, parameter in model.named_parameters():
            if "span_bias" in name:
                torch.nn.init.constant_(parameter, 0.4)
        losses.append(update(objective, model, rows))
    layers, span = 2, 4.0
    torch.testing.assert_close(losses[0] - losses[1], torch.tensor(layers * 0.25 * span).double())


@pytest.mark.parametrize("case", CASES)
def test_validation_and_other_models_have_no_penalty(case: str) -> None:
    objective, make, key = CASES[case]
    model = make(**{key: SPEC})
    one = batch(3)
    plain = model(**one, num_items_in_batch=1.0).loss
    assert torch.equal(objective.loss(model, one, divisor=1.0, smoothing=0.0), plain)
    model = make().train()
    assert model.penalty() is None
    assert torch.equal(
        objective.loss(model, one, divisor=1.0, smoothing=0.0),
        model(**one, num_items_in_batch=1.0).loss,
    )
