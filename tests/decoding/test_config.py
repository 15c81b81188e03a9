"""A wrong setting, or one without effect, is refused with its name and the fix."""

import inspect
from dataclasses import asdict, fields

import pytest

from outrider.cli import decode_options
from outrider.cli.translate import translate
from outrider.config import build_config, explain
from outrider.decoding import DecodeConfig, DecodeSettings
from outrider.errors import ConfigError
from outrider.serving.api.fields import Options


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
            {"mode": "ar", "gamma": 0.5},
            "^gamma: 0.5 has no effect with mode 'ar'; set mode to '",
        ),
        (
            {"mode": "tandem", "iterations": 2},
            "^iterations: 2 has no effect with mode 'tandem'; "
            "set mode to 'parallel' or leave iterations out$",
        ),
        ({"gamma": 0.5, "candidates": 2}, "^candidates: 2 has no effect with mode 'tandem'"),
        ({"mode": "parallel", "draft_tokens": 4}, "^draft_tokens: 4 has no effect with mode 'par"),
        ({"mode": "parallel", "strict": True}, "^strict: True has no effect with mode 'parallel'"),
        (
            {"mode": "tandem", "strategy": "beam"},
            "^strategy: 'beam' cannot be combined with mode 'tandem'; "
            "set strategy to 'greedy' or 'sample', or mode to 'ar'$",
        ),
        (
            {"mode": "parallel", "strategy": "sample"},
            "^strategy: 'sample' cannot be combined with mode 'parallel'; set strategy to 'greedy'",
        ),
        (
            {"mode": "tandem", "beams": 5},
            "^beams: 5 has no effect with mode 'tandem'; set mode to 'ar' or leave beams out$",
        ),
        ({"mode": "parallel", "top_k": 5}, "^top_k: 5 has no effect with mode 'parallel'"),
        (
            {"mode": "tandem", "strategy": "greedy", "top_k": 5},
            "^top_k: 5 has no effect with strategy 'greedy'",
        ),
        ({"mode": "tandem", "gamma": 0.5, "strict": True}, "^strict: has no effect with sample or"),
        (
            {"strict": True, "strategy": "sample"},
            "^strict: has no effect with sample or with",
        ),
        ({"gamma": 1.5}, "^gamma: got 1.5, expected 0 to 1$"),
        ({"draft_tokens": 0}, "^draft_tokens: got 0, expected 1 to 1024$"),
        ({"iterations": -1}, "^iterations: got -1, expected 0 to 1000$"),
        ({"candidates": 0}, "^candidates: got 0, expected 1 to 1000$"),
        ({"decoder": "nat"}, "^decoder: got 'nat', expected 'ctc' or 'drafter'"),
        ({"mode": "fast"}, "^mode: got 'fast', expected 'ar', 'tandem' or 'parallel'"),
        ({"mode": ["ar"], "beams": 2}, "^mode: got "),
        (
            {"strategy": "greedy", "beams": 4},
            "^beams: 4 has no effect with strategy 'greedy'; "
            "set strategy to 'beam' or leave beams out$",
        ),
        ({"strategy": "beam", "temperature": 0.5}, "^temperature: 0.5 has no effect with strategy"),
        ({"beams": 4, "top_k": 3}, "^top_k: 3 has no effect with strategy 'beam'"),
        ({"beams": 2, "n_best": 3}, r"^n_best: 3 is more than beams \(2\); raise beams or lower"),
        ({"beams": 0}, "^beams: got 0, expected 1 to 1000$"),
        ({"temperature": 0}, "^temperature: got 0, expected 1e-06 to 1e[+]06$"),
        ({"top_p": 1.5}, "^top_p: got 1.5, expected 1e-09 to 1$"),
        ({"strategy": "bean"}, "^strategy: got 'bean', expected 'greedy', 'sample' or 'beam'"),
        ({"beam": 4}, r"^beam: unknown key \(did you mean 'beams'\?\)"),
    ],
)
def test_mistakes_are_named(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(DecodeConfig, values)


@pytest.mark.parametrize(
    ("values", "mode", "strategy"),
    [
        ({}, "ar", "greedy"),
        ({"gamma": 0.0}, "tandem", "greedy"),
        ({"draft_tokens": 4, "top_k": 3}, "tandem", "sample"),
        ({"iterations": 2}, "parallel", "greedy"),
        ({"decoder": "ctc"}, "parallel", "greedy"),
        ({"mode": "ar", "strict": False, "draft_tokens": None, "decoder": None}, "ar", "greedy"),
    ],
)
def test_the_settings_given_decide_the_mode(values: dict, mode: str, strategy: str) -> None:
    config = build_config(DecodeConfig, values)
    assert (config.mode, config.strategy) == (mode, strategy)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"beams": 5, "suppress": (0,)},
        {"top_k": 3, "seed": 1},
        {"mode": "tandem", "gamma": 0.5, "top_p": 0.9, "seed": 2},
        {"mode": "tandem", "strict": True},
        {"mode": "parallel", "decoder": "drafter", "iterations": 3},
    ],
)
def test_a_saved_config_reads_back_and_holds_only_what_counts(values: dict) -> None:
    config = DecodeConfig(**values)
    saved = config.model_dump(mode="json")
    assert build_config(DecodeConfig, saved) == config
    assert ("beams" in saved, "seed" in saved) == ("beams" in values, "seed" in values)
    assert ("gamma" in saved) == (config.mode == "tandem")
    assert ("iterations" in saved) == (config.mode == "parallel")


def test_loops_are_told_what_the_config_says() -> None:
    plain = {field.name: field.default for field in fields(DecodeSettings)}
    assert plain == {name: field.default for name, field in DecodeConfig.model_fields.items()}
    config = DecodeConfig(mode="tandem", gamma=0.5, top_p=0.9, seed=2, suppress=(3,))
    assert asdict(config.settings) == {name: getattr(config, name) for name in plain}
    assert config.settings.sampling == config.sampling


FROM_THE_MODEL = {"suppress", "force_eos"}
"""Read from `generation_config.json`; a command or client does not set them."""


def test_every_option_is_in_python_yaml_the_command_line_and_http() -> None:
    options = set(DecodeConfig.model_fields)  # of YAML
    assert {field.name for field in fields(DecodeSettings)} == options  # of Python
    # n_best prints a list, so only `translate` has it; scores are printed with it.
    typed = {*inspect.signature(decode_options.settings).parameters, "n_best", "scores"}
    assert "n_best" in inspect.signature(translate).parameters
    assert typed == options - FROM_THE_MODEL
    # HTTP has alternatives (`n`) and no scores.
    posted = {*Options.model_fields, "n_best", "scores"}
    assert posted == options - FROM_THE_MODEL


def test_every_field_is_explained() -> None:
    assert all(field.text for field in explain(DecodeConfig))
