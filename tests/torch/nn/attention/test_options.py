"""Options of an attention: accepted values and error messages."""

import sys
from types import ModuleType

import pytest

from outrider.errors import ConfigError
from outrider.torch.nn.attention import HeadShape, _check_options, build_attention

SHAPE = HeadShape(2, 2, 4)

POSTPONED = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Literal
from outrider.torch.nn.attention.base import AttentionConfig

@dataclass(frozen=True, kw_only=True)
class Config(AttentionConfig):
    window: int = 4
    share: float = 0.5
    causal: bool = True
    form: Literal["auto", "dense"] = "auto"
    limit: int | None = None
"""


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> type:
    """The config of a variant, in a module with postponed annotations."""
    module = ModuleType("postponed")
    monkeypatch.setitem(sys.modules, "postponed", module)
    exec(compile(POSTPONED, "postponed.py", "exec"), module.__dict__)
    return module.Config


@pytest.mark.parametrize("penalty", [0, 1, 0.5])
def test_an_integer_is_accepted_for_a_float(penalty: float) -> None:
    spec = {"kind": "adaptive_span", "penalty": penalty}
    attention = build_attention(spec, causal=True, shape=SHAPE)
    assert attention.config.penalty == penalty  # type: ignore[attr-defined]
    assert type(attention.config.penalty) is float  # type: ignore[attr-defined]


def test_valid_values_are_accepted(config: type) -> None:
    options = {"window": 3, "share": 1, "causal": False, "form": "dense", "limit": None}
    _check_options(config, options, kind="new", key="attention")
    assert options["share"] == 1.0
    assert type(options["share"]) is float


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("window", 3.0, "a whole number"),
        ("window", True, "a whole number"),
        ("window", "3", "a whole number"),
        ("window", None, "a whole number"),
        ("share", "0.5", "a number"),
        ("share", True, "a number"),
        ("share", 10**400, "a number"),
        ("causal", 1, "true or false"),
        ("form", "dens", "'auto' or 'dense'"),
        ("limit", "x", "a whole number or null"),
        ("limit", 2.5, "a whole number or null"),
    ],
)
def test_invalid_values_are_named(config: type, name: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _check_options(config, {name: value}, kind="new", key="attention")
    assert str(caught.value) == f"attention.{name}: got {value!r}, expected {expected}"


def test_an_unknown_option_names_the_nearest(config: type) -> None:
    with pytest.raises(ConfigError, match=r"attention\.windw: unknown option of 'new' \(did you"):
        _check_options(config, {"windw": 3}, kind="new", key="attention")
