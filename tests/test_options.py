"""The table of decode options, and everything that derives from it."""

from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from outrider.cli.main import build_app
from outrider.config import as_yaml, explain, load_config
from outrider.decoding import DecodeConfig
from outrider.errors import ConfigError
from outrider.options import OPTIONS, THREADS, Option, check_bound, decode_config
from outrider.run_config import EvaluateConfig
from tests.helpers.docs_part import docs_part

NUMBERS = [name for name, row in OPTIONS.items() if row.bounds]


@pytest.mark.parametrize(
    ("values", "strategy"),
    [({}, "greedy"), ({"beams": 5}, "beam"), ({"top_p": 0.9}, "sample"), ({"seed": 3}, "sample")],
)
def test_the_strategy_follows_from_the_options(values: dict, strategy: str) -> None:
    assert decode_config(values).strategy == strategy


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
        decode_config(values)


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
def test_the_mode_follows_from_the_options(values: dict, mode: str, strategy: str) -> None:
    config = decode_config(values)
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
def test_a_saved_config_holds_only_relevant_options(values: dict) -> None:
    config = DecodeConfig(**values)
    section = EvaluateConfig(text="test.txt", decode=config)
    saved = section.model_dump(mode="json")["decode"]
    assert decode_config(saved) == config
    assert ("beams" in saved, "seed" in saved) == ("beams" in values, "seed" in values)
    assert ("gamma" in saved) == (config.mode == "tandem")
    assert ("iterations" in saved) == (config.mode == "parallel")


def example(row: Option) -> Any:
    """Return a value other than the default that needs no other option."""
    if row.bounds:
        return row.bounds[1] if row.kind is float else (row.default or 0) + 1
    return {bool: True, tuple[int, ...]: (3,)}.get(row.kind) or get_args(row.kind)[-1]


@pytest.mark.parametrize("row", OPTIONS.values(), ids=OPTIONS)
def test_python_and_yaml_have_every_option(row: Option, tmp_path: Path) -> None:
    value = example(row)
    assert value != row.default
    config = DecodeConfig(**{row.name: value})
    assert getattr(config, row.name) == value
    section, path = EvaluateConfig(text="test.txt", decode=config), tmp_path / "evaluate.yaml"
    path.write_text(as_yaml(section))
    assert load_config(EvaluateConfig, path) == section
    override = f"decode.{row.name}={list(value) if isinstance(value, tuple) else value}"
    path.write_text("text: test.txt")
    assert load_config(EvaluateConfig, path, [override.lower()]) == section


@pytest.mark.parametrize("name", ["translate", "generate"])
def test_the_command_line_has_the_options_of_the_table(name: str) -> None:
    command: Any = typer.main.get_command(build_app()).commands[name]
    found = {param.name: param for param in command.params}
    for row in OPTIONS.values():
        if row.help and (name, row.name) != ("generate", "n_best"):  # this command prints one text
            option = found.pop(row.name)
            assert option.opts == [f"--{row.name.replace('_', '-')}"]
            assert option.help == row.help
    assert not OPTIONS.keys() & found


def test_http_has_the_options_of_the_table() -> None:
    pytest.importorskip("fastapi", reason="needs outrider[serve]")
    from outrider.serving.app import build_app as build_server
    from outrider.serving.engine import Engine

    schema = build_server(Engine([])).openapi()["components"]["schemas"]["Options"]
    found = schema["properties"]
    texts = {key.key: key.text for key in explain(DecodeConfig)}
    assert list(found) == [row.name for row in OPTIONS.values() if row.http]
    for name, field in found.items():
        assert field["description"] == texts[name] != ""
        kind, null = field["anyOf"]
        assert null == {"type": "null"}
        if (bounds := OPTIONS[name].bounds) is not None:
            most = OPTIONS[name].http_most or bounds[1]
            assert (kind["minimum"], kind["maximum"]) == (bounds[0], most)


def test_pages_show_the_options_of_the_table() -> None:
    generator = docs_part("options")
    for path in generator.PAGES:
        assert generator.page(path) == path.read_text("utf-8"), "run python docs/options.py"
    rows = list(docs_part("hooks")._options())
    for name in OPTIONS:
        assert sum(row.startswith(f"| `{name}` |") for row in rows) == 1


def test_every_option_is_explained_with_its_bounds() -> None:
    keys = {key.key: key for key in explain(EvaluateConfig)}
    for name in OPTIONS:
        assert keys[f"decode.{name}"].text
    assert keys["decode.top_k"].type == "int | null >= 1 <= 16777216"
    assert keys["decode.beams"].default == "4"


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        ("{beams: 0}", r"decode\.beams: got 0, expected 1 to 1000"),
        ("{beem: 2}", r"decode\.beem: unknown key \(did you mean 'beams'\?\); accepted here: al"),
        ("{gamma: 0.5, strict: true}", r"decode\.strict: has no effect with sample"),
        ("5", r"decode: got 5, expected a section of `key: value` lines"),
    ],
)
def test_a_mistake_in_yaml_is_named_with_its_section(
    decode: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "evaluate.yaml"
    path.write_text(f"text: test.txt\ndecode: {decode}")
    with pytest.raises(ConfigError, match=f"^{message}"):
        load_config(EvaluateConfig, path)


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", [10**400, 10**30, -(10**30), float("nan"), float("inf"), -1e300])
def test_a_number_out_of_bounds_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}: got .+, expected \S+ to \S+$"):
        decode_config({key: value})


@pytest.mark.parametrize("key", NUMBERS)
def test_bounds_are_inclusive(key: str) -> None:
    for bound in OPTIONS[key].bounds or ():
        beams = {"beams": 1000} if key == "n_best" else {}
        assert getattr(decode_config({key: bound, **beams}), key) == bound


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("beams", "4", "a whole number"),
        ("beams", 2.5, "a whole number"),
        ("beams", True, "a whole number"),
        ("beams", None, "a whole number"),
        ("gamma", "x", "a number"),
        ("strict", 1, "true or false"),
        ("suppress", [1.5], "a list of token ids"),
        ("suppress", 3, "a list of token ids"),
    ],
)
def test_a_value_of_another_type_is_refused(key: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: got .*, expected {expected}$"):
        decode_config({key: value})


def test_numbers_get_the_type_of_the_option() -> None:
    np = pytest.importorskip("numpy")
    config = decode_config({"beams": np.int64(3), "length_penalty": 2, "max_new_tokens": 5.0})
    assert (config.beams, config.length_penalty, config.max_new_tokens) == (3, 2.0, 5)
    assert {type(config.beams), type(config.max_new_tokens)} == {int}
    assert type(config.length_penalty) is float


@pytest.mark.parametrize("threads", [0, -1, 10**11])
def test_threads_are_bounded(threads: int) -> None:
    with pytest.raises(ConfigError, match=rf"^threads: got {threads}, expected 1 to 1024$"):
        check_bound("threads", threads, THREADS)
