"""The learning curve of a log."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import InputError, MissingExtraError
from outrider.show.curve import draw_curve


def log(*, bleu: bool, steps: int = 40) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for step in range(50, 50 * steps + 1, 50):
        loss = 1.8 + 7 * math.exp(-step / 300) + 0.05 * math.sin(step)
        rate = min(step / 500, (500 / step) ** 0.5) * 1e-3
        records.append({"event": "update", "step": step, "loss": loss, "learning_rate": rate})
        if step % 250 == 0:
            valid = {"event": "evaluation", "step": step, "loss": loss + 0.2}
            records.append({**valid, "bleu": 38 * (1 - math.exp(-step / 500))} if bleu else valid)
    return records


@pytest.mark.parametrize("bleu", [True, False])
def test_draws_a_picture(tmp_path: Path, bleu: bool) -> None:
    path = tmp_path / "curve.png"
    draw_curve(log(bleu=bleu), path, title="multi30k-en-de")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000


def test_one_update_is_enough(tmp_path: Path) -> None:
    draw_curve(log(bleu=False)[:1], tmp_path / "curve.png", title="short")
    assert (tmp_path / "curve.png").exists()


def test_an_empty_log_has_no_curve(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no update yet"):
        draw_curve([], tmp_path / "curve.png", title="empty")


def test_names_the_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'outrider\[plot\]'"):
        draw_curve(log(bleu=False), tmp_path / "curve.png", title="x")
