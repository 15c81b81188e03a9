"""A wrong setting, or one without effect, is refused with its name and the fix."""

import pytest

from outrider.config import build_config, explain
from outrider.decoding import DecodeConfig
from outrider.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "strategy"),
    [({}, "greedy"), ({"beams": 5}, "beam"), ({"top_p": 0.9}, "sample"), ({"seed": 3}, "sample")],
)
def test_the_settings_given_decide_the_strategy(values: dict, strategy: str) -> None:
    assert build_config(DecodeConfig, values).strategy == strategy


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"strategy": "greedy", "beams": 4},
            "^beams: 4 has no effect with strategy 'greedy'; "
            "set strategy to 'beam' or leave beams out$",
        ),
        ({"strategy": "beam", "temperature": 0.5}, "^temperature: 0.5 has no effect with strategy"),
        ({"beams": 4, "top_k": 3}, "^top_k: 3 has no effect with strategy 'beam'"),
        ({"beams": 2, "n_best": 3}, r"^n_best: 3 is more than beams \(2\); raise beams or lower"),
        ({"beams": 0}, "^beams: got 0, expected greater than or equal to 1"),
        ({"temperature": 0}, "^temperature: got 0, expected greater than 0"),
        ({"top_p": 1.5}, "^top_p: got 1.5, expected less than or equal to 1"),
        ({"strategy": "bean"}, "^strategy: got 'bean', expected 'greedy', 'sample' or 'beam'"),
        ({"beam": 4}, r"^beam: unknown key \(did you mean 'beams'\?\)"),
    ],
)
def test_mistakes_are_named(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(DecodeConfig, values)


@pytest.mark.parametrize("values", [{}, {"beams": 5, "suppress": (0,)}, {"top_k": 3, "seed": 1}])
def test_a_saved_config_reads_back_and_holds_only_what_counts(values: dict) -> None:
    config = DecodeConfig(**values)
    saved = config.model_dump(mode="json")
    assert build_config(DecodeConfig, saved) == config
    assert ("beams" in saved, "seed" in saved) == ("beams" in values, "seed" in values)


def test_every_field_is_explained() -> None:
    assert all(field.text for field in explain(DecodeConfig))
