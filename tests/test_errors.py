"""The exception classes: one base class, one line per message."""

import inspect

import pytest

from outrider import errors
from outrider.errors import ConfigError, DataError, MissingExtraError, OutriderError, nearest


def test_every_public_error_is_an_outrider_error_and_documented() -> None:
    classes = [getattr(errors, name) for name in errors.__all__]
    found = [item for item in classes if inspect.isclass(item) and issubclass(item, Exception)]
    found = [item for item in found if not issubclass(item, Warning)]
    assert len(found) == 8
    for error in found:
        assert issubclass(error, OutriderError)
        assert error.__doc__
        assert error.__name__ in str(errors.__doc__)


def test_config_error_starts_with_its_key() -> None:
    error = ConfigError("train.steps", "got 0, expected 1 or more")
    assert str(error) == "train.steps: got 0, expected 1 or more"
    assert error.key == "train.steps"


def test_missing_extra_names_the_installation_command() -> None:
    assert str(MissingExtraError("matplotlib", "plot", "drawing curves")) == (
        "drawing curves needs matplotlib, which is not installed: pip install 'outrider[plot]'"
    )


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("setps", " (did you mean 'steps'?)"),
        ("zzz", ""),
        ("", ""),
        ("Steps", " (did you mean 'steps'?)"),
    ],
)
def test_nearest(word: str, hint: str) -> None:
    assert nearest(word, iter(["steps", "seed"])) == hint


def test_a_message_is_one_line_and_a_long_key_is_cut() -> None:
    assert str(DataError("x: damaged (first\n  second)")) == "x: damaged (first second)"
    error = ConfigError("k" * 5000, "is wrong")
    assert str(error) == f"{'k' * 200}...: is wrong"
    assert error.key == "k" * 5000
