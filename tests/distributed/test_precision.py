"""`precision: auto` on two processes: both use the same one, and a resumed run keeps it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.launch import Run

from .test_two_processes import config, corpus  # noqa: F401  (a fixture)

pytestmark = [pytest.mark.slow, pytest.mark.dist]


def test_two_processes_agree_and_resume_alike(
    tmp_path: Path,
    corpus: Path,  # noqa: F811
) -> None:
    def run(name: str, **train: Any) -> Run:
        values = config(corpus)
        values["train"] |= {"evaluate_every": 0, "stop_metric": "loss", "save_every": 4, **train}
        return Run(tmp_path / name, values, processes=2)

    assert "precision: " in run("auto", precision="auto", steps=4).finish()
    resumed = run("auto", precision="auto", steps=8)
    assert "measured" not in resumed.finish()
    chosen = json.loads((resumed.folder / "state.json").read_text())["chosen"]["precision"]
    plain = run("plain", precision=chosen, steps=8)
    plain.finish()
    assert resumed.weights_hash() == plain.weights_hash()
    assert resumed.updates() == plain.updates()
