"""Model specs from `config.json`: every value has the type of its key; errors name the key."""

from typing import Any

import pytest

from outrider.errors import ConfigError
from outrider.formats.side_spec import CtcSpec, DrafterSpec
from outrider.formats.spec import LanguageModelSpec, Seq2SeqSpec, build_spec

WRONG: list[tuple[str, Any, str]] = [
    ("vocab_size", "9", "vocab_size: got '9', expected a whole number"),
    ("vocab_size", True, "vocab_size: got True, expected a whole number"),
    ("vocab_size", 9.0, "vocab_size: got 9.0, expected a whole number"),
    ("gated", 1, "gated: got 1, expected true or false"),
    ("norm", None, "norm: got None, expected text"),
    ("dropout", "x", "dropout: got 'x', expected a number"),
    ("eos_token_id", [1, "x"], "eos_token_id: got .*, expected a whole number or a list"),
    ("encoder_attention", 7, "encoder_attention: got 7, expected a section of keys or a list"),
    ("encoder_attention", [{}, 7], "encoder_attention: got"),
    ("halting", [], r"halting: got \[\], expected a section of keys or null"),
    ("num_attention_headz", 4, "unknown key of Seq2SeqConfig .did you mean 'num_attention_heads'"),
    ("layer_keys", ["x"], "layer_keys: unknown key"),
]


@pytest.mark.parametrize(("key", "value", "message"), WRONG, ids=[m for *_, m in WRONG])
def test_a_value_of_another_type_is_named(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_spec(Seq2SeqSpec, {key: value})


def test_an_integer_is_accepted_for_a_fraction() -> None:
    assert build_spec(Seq2SeqSpec, {"dropout": 0}).dropout == 0


def test_keys_of_transformers_without_effect_are_ignored() -> None:
    values = {"architectures": ["X"], "_name_or_path": "x", "is_decoder": True, "dtype": "float32"}
    assert build_spec(LanguageModelSpec, values) == LanguageModelSpec()


def test_side_decoders_fit_their_target_or_are_refused() -> None:
    target = Seq2SeqSpec(vocab_size=50)
    for cls in (DrafterSpec, CtcSpec):
        own = cls.for_target(target)
        own.check_target(target)
        assert build_spec(cls, vars(own)) == own
    with pytest.raises(ConfigError, match="vocab_size: comes from the target"):
        DrafterSpec.for_target(target, vocab_size=3)
