"""Numeric options have bounds; a value outside them gives one error message."""

from pathlib import Path

import pytest

from tests.helpers.forked import attack, attack_each

TEXT = "a small dog runs"
ABSURD = ("-1", "0", "1000000000", "100000000000000000000", "1e300", "nan", "inf", "x", "")
MODES = {
    "--max-new-tokens": (),
    "--beams": (),
    "--length-penalty": ("--beams", "2"),
    "--temperature": (),
    "--top-k": (),
    "--top-p": (),
    "--seed": (),
    "--gamma": (),
    "--draft-tokens": (),
    "--iterations": ("--mode", "parallel"),
    "--candidates": ("--mode", "parallel"),
    "--n-best": ("--beams", "2"),
    "--threads": (),
    "--batch-tokens": (),
    "--mode": (),
    "--strategy": (),
    "--decoder": (),
    "--device": (),
    "--dtype": (),
    "--backend": (),
}


@pytest.mark.parametrize("option", MODES)
def test_an_extreme_value(translator: Path, tmp_path: Path, option: str) -> None:
    # This model generates up to the limit, so a legal but huge limit takes long.
    capped = () if option == "--max-new-tokens" else ("--max-new-tokens", "20")
    given = ("translate", "--model", translator, *MODES[option], *capped)
    lines = [(*given, f"{option}={value}", TEXT) for value in ABSURD]
    names = (option, option.strip("-").replace("-", "_"))
    for value, outcome in zip(ABSURD, attack_each(lines, tmp_path), strict=True):
        if outcome.code == 2:
            assert any(name in outcome.err for name in names), f"{value}: {outcome.err}"


@pytest.mark.parametrize("penalty", ["1e300", "-1e300", "400", "-400"])
def test_an_extreme_length_penalty(translator: Path, tmp_path: Path, penalty: str) -> None:
    arguments = ("--beams", "3", "--max-new-tokens", "20", f"--length-penalty={penalty}")
    attack("translate", "--model", translator, *arguments, TEXT, folder=tmp_path)


TEMPERATURES = ("1e-40", "1e-300", "1e-5", "1e5", "1e38", "1e300")


@pytest.mark.parametrize("mode", ["ar", "tandem"])
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_an_extreme_temperature(translator: Path, tmp_path: Path, mode: str, backend: str) -> None:
    if backend == "native":
        pytest.importorskip("outrider_native")
    given = ("translate", "-m", translator, "--mode", mode, "--backend", backend)
    given += ("--max-new-tokens", "20")
    attack_each([(*given, "--temperature", value, TEXT) for value in TEMPERATURES], tmp_path)


@pytest.mark.parametrize("size", ["1", "24", "300", "4000000000"])
def test_a_prompt_with_any_token_limit(language_model: Path, tmp_path: Path, size: str) -> None:
    arguments = ("--max-new-tokens", size, "two men play")
    outcome = attack("generate", "--model", language_model, *arguments, folder=tmp_path)
    if outcome.code == 0:
        assert outcome.out.startswith("two men play")


PLACES = ("", ".", "..", "/", "nowhere", "a/b/c", "https://x/y", "\n", "~")


@pytest.mark.parametrize("command", ["translate", "generate", "doctor"])
def test_a_missing_model(tmp_path: Path, command: str) -> None:
    given = (command,) if command == "doctor" else (command, "--model")
    attack_each([(*given, name) for name in PLACES], tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ("train",),
        ("train", "nowhere.yaml"),
        ("train", "."),
        ("train", "/dev/null"),
        ("prepare", "nowhere.yaml"),
        ("config", "nowhere.yaml", "x"),
        ("evaluate", "nowhere"),
        ("evaluate", "nowhere", "--source", "a", "--reference", "b"),
        ("export", "nowhere", "--to", "marian", "out"),
        ("distill", "nowhere", "nowhere"),
        ("show", "pattern", "nothing"),
        ("show", "tandem"),
        ("show",),
        ("lab", "bench", "decode", "nowhere"),
        ("bench", "nothing"),
        ("compare", "--task", "nothing"),
        ("nothing",),
        ("--nothing",),
        ("translate", "--model"),
        ("translate", "--model", "x", "--in", "nowhere", "text"),
    ],
    ids=" ".join,
)
def test_an_invalid_command_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    outcome = attack(*arguments, folder=tmp_path)
    assert outcome.code in (0, 2)
