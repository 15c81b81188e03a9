"""Names and shapes of weights, computed without PyTorch, equal those that PyTorch builds."""

from typing import Any

import pytest
from torch import nn

from outrider.formats import spec
from outrider.formats.layout import ctc_layout, drafter_layout, model_layout
from outrider.formats.weights import Expected
from outrider.torch.models.folder import _expected
from outrider.torch.nn.layer.feedforward import ACTIVATIONS
from outrider.torch.nn.layer.residual import RESIDUALS
from tests.helpers import native_tiny, tiny


def built(module: nn.Module) -> dict[str, Expected]:
    return _expected(module.state_dict())


@pytest.mark.parametrize("kind", native_tiny.KINDS)
def test_models_have_the_weights_of_the_layout(kind: str) -> None:
    model = native_tiny.build(kind)
    assert model_layout(model.config) == built(model)


FURTHER: list[dict[str, Any]] = [
    {"rms_norm": True, "embedding_norm": True},
    {"embedding_norm": True, "norm": "post", "head_dim": 6, "num_key_value_heads": 1},
    {"position": "bucketed", "relative_buckets": 8, "head_dim": 10},
]


@pytest.mark.parametrize("values", FURTHER, ids=str)
@pytest.mark.parametrize("make", [tiny.seq2seq, tiny.language_model])
def test_norms_and_widths_of_other_families_have_the_layout(
    make: Any, values: dict[str, Any]
) -> None:
    model = make(**values)
    assert model_layout(model.config) == built(model)


@pytest.mark.parametrize("kind", native_tiny.DRAFTERS)
def test_drafters_have_the_weights_of_the_layout(kind: str) -> None:
    for target in (tiny.seq2seq(), tiny.language_model()):
        drafter = native_tiny.build_drafter(target, **native_tiny.DRAFTERS[kind])
        assert drafter_layout(drafter.config) == built(drafter)


@pytest.mark.parametrize("values", [{}, {"norm": "post"}, {"cross": True, "gated": True}])
def test_ctc_decoders_have_the_weights_of_the_layout(values: dict[str, Any]) -> None:
    ctc = native_tiny.build_ctc(tiny.seq2seq(), **values)
    assert ctc_layout(ctc.config) == built(ctc)


def test_the_values_of_the_spec_equal_the_parts_in_nn() -> None:
    assert tuple(ACTIVATIONS) == spec.ACTIVATIONS
    assert RESIDUALS == spec.RESIDUALS
