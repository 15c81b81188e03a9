"""Every number of a call has a least and a most; the message names key, value and range."""

from typing import Any, get_args

import pytest

from outrider.bounds import BOUNDS, check_bound
from outrider.config import build_config
from outrider.decoding import DecodeConfig
from outrider.errors import ConfigError

NUMBERS = [
    name
    for name, field in DecodeConfig.model_fields.items()
    if {int, float} & {field.annotation, *get_args(field.annotation)} and name != "suppress"
]


def test_every_number_of_decoding_is_in_the_table() -> None:
    assert set(NUMBERS) <= set(BOUNDS)
    assert {"batch_tokens", "threads"} == set(BOUNDS) - set(NUMBERS)


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", [10**400, 10**30, -(10**30), float("nan"), float("inf"), -1e300])
def test_a_number_out_of_bounds_is_one_sentence(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}: got .+, expected \S+ to \S+$"):
        build_config(DecodeConfig, {key: value})


@pytest.mark.parametrize("key", NUMBERS)
def test_the_bounds_themselves_are_accepted(key: str) -> None:
    for bound in BOUNDS[key]:
        beams = {"beams": 1000} if key == "n_best" else {}
        assert getattr(build_config(DecodeConfig, {key: bound, **beams}), key) == bound


@pytest.mark.parametrize("threads", [0, -1, 10**11])
def test_threads_are_bounded(threads: int) -> None:
    with pytest.raises(ConfigError, match=rf"^threads: got {threads}, expected 1 to 1024$"):
        check_bound("threads", threads)
