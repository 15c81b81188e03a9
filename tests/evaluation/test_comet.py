"""COMET: the input and output of its program, and the error message without it."""

import sys
from pathlib import Path

import pytest

from outrider.errors import ConfigError, ResourceError
from outrider.evaluation.metrics import score_comet

PROGRAM = f"""#!{sys.executable}
import json, sys
given = dict(zip(sys.argv[1::1], sys.argv[2::1]))
if given["--model"] == "broken":
    sys.exit("Model 'broken' not supported by COMET.")
sides = [open(given[name], encoding="utf-8").read().splitlines() for name in ("-s", "-t", "-r")]
scores = [
    {{"src": s, "mt": t, "ref": r, "COMET": len(s) + 10 * len(t) + 100 * len(r)}}
    for s, t, r in zip(*sides, strict=True)
]
json.dump({{given["-t"]: scores}}, open(given["--to_json"], "w"))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program with the arguments and output format of `comet-score` of unbabel-comet 2.2.7."""
    path = tmp_path / "comet-score"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    monkeypatch.setenv("OUTRIDER_COMET", str(path))
    return path


@pytest.mark.usefixtures("program")
def test_the_mean_of_all_lines_is_returned() -> None:
    found = score_comet(["a", "b\nb"], ["cc", "d"], ["e", "f"], model="some")
    assert found == pytest.approx((1 + 20 + 100 + 3 + 10 + 100) / 2)


@pytest.mark.usefixtures("program")
def test_errors_of_comet_are_passed_on() -> None:
    with pytest.raises(ResourceError, match="comet-score failed with 1: Model 'broken'"):
        score_comet(["a"], ["b"], ["c"], model="broken")


def test_a_missing_program_names_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_COMET", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"--comet: .*nowhere was not found; install unbabel"):
        score_comet(["a"], ["b"], ["c"], model="some")
