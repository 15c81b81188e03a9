"""Quantised weights on disk: rounding errors, and refused scales."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import save_file

from outrider.errors import ModelError
from outrider.formats.quantised import int4_groups, int8_rows
from outrider.formats.safetensors import Weight
from outrider.formats.weights import read_weights

NUMBERS = st.floats(-100, 100, width=32)


@given(arrays(np.float32, (3, 64), elements=NUMBERS))
def test_the_error_of_int8_is_at_most_half_a_step(array: np.ndarray) -> None:
    data, scale = int8_rows(array)
    wide = Weight("int8", data, scale).as_float32()
    assert (np.abs(wide - array) <= scale[:, None] * 0.5001 + 1e-30).all()
    largest = np.abs(array).max(1)
    assert (np.abs(data).max(1)[largest > 1e-30] == 127).all()


@given(arrays(np.float32, (3, 64), elements=NUMBERS))
def test_the_error_of_int4_is_at_most_that_of_the_scale_by_eight(array: np.ndarray) -> None:
    data, scale = int4_groups(array)
    weight = Weight("int4", data, scale)
    assert (data.shape, scale.shape, weight.shape) == ((3, 32), (3, 2), (3, 64))
    wide = weight.as_float32()
    largest = np.abs(array.reshape(3, 2, 32)).max(2, keepdims=True)
    off = np.abs((wide - array).reshape(3, 2, 32))
    # At most the error of the scale that maps the largest number to -8, where 8 is missing.
    assert (np.square(off).sum(2) <= 32 * np.square(largest[..., 0] / 8 * 1.01) + 1e-6).all()
    np.testing.assert_array_equal(weight.rows(np.array([2, 0])).as_float32(), wide[[2, 0]])


def test_int4_has_less_error_than_with_the_scale_of_the_largest_number() -> None:
    array = np.random.default_rng(0).normal(size=(50, 64)).astype(np.float32)
    error = np.square(Weight("int4", *int4_groups(array)).as_float32() - array).mean()
    groups = array.reshape(-1, 32)
    step = np.abs(groups).max(1, keepdims=True) / 7
    assert error < 0.9 * np.square(np.rint(groups / step) * step - groups).mean()


def test_int4_represents_its_integers_exactly() -> None:
    array = np.tile(np.arange(-8, 8, dtype=np.float32), (2, 4)) * 0.25
    np.testing.assert_array_equal(Weight("int4", *int4_groups(array)).as_float32(), array)


def test_zeros_are_exact() -> None:
    zeros = np.zeros((2, 32), np.float32)
    for kind, made in (("int8", int8_rows(zeros)), ("int4", int4_groups(zeros))):
        assert not Weight(kind, *made).as_float32().any()


@pytest.mark.parametrize(
    ("data", "scale", "said"),
    [
        (torch.zeros(4, 8, dtype=torch.int8), torch.ones(5), "do not match"),
        (torch.zeros(4, 8, dtype=torch.int8), torch.ones(4, 1), "do not match"),
        (torch.zeros(4, dtype=torch.int8), torch.ones(4), "do not match"),
        (torch.zeros(4, 16, dtype=torch.uint8), torch.ones(4, 1), "do not match"),
        (torch.zeros(4, 16, dtype=torch.uint8), torch.ones(4, 2).half(), "do not match"),
        (torch.zeros(4, 15, dtype=torch.uint8), torch.ones(4, 0).half(), "do not match"),
        (torch.zeros(4, 8), torch.ones(4), "do not match"),
        (torch.zeros(4, 8, dtype=torch.int8), torch.full((4,), torch.inf), "not finite"),
    ],
)
def test_invalid_scales_are_refused(
    data: torch.Tensor, scale: torch.Tensor, said: str, tmp_path: Path
) -> None:
    save_file({"a.weight": data, "a.weight_scale": scale}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"'a.weight'.*{said}|scale of 'a.weight' is {said}"):
        read_weights(tmp_path)
