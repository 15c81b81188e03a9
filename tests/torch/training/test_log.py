"""After a resume the log holds each step once."""

from pathlib import Path

import pytest

from outrider.errors import DataError
from outrider.torch.training.log import Log, read_log


def test_rewind_drops_later_steps_and_a_torn_line(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    for step in (10, 20, 30):
        log.write({"event": "update", "step": step, "loss": 0.1 * step})
    with log.path.open("a") as file:
        file.write('{"event": "update", "st')
    assert [record["step"] for record in read_log(log.path)] == [10, 20, 30]
    log.rewind(20)
    log.write({"event": "update", "step": 30, "loss": 3.0})
    assert [record["step"] for record in read_log(log.path)] == [10, 20, 30]
    assert read_log(log.path)[1]["loss"] == 0.1 * 20


def test_a_log_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert read_log(tmp_path / "log.jsonl") == []
    Log(tmp_path / "log.jsonl").rewind(0)
    assert (tmp_path / "log.jsonl").read_text() == ""


@pytest.mark.parametrize("line", ["{", "[]", "null", '{"step": 1}', "[" * 5000])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    log = Log(tmp_path / "log.jsonl")
    log.write({"event": "update", "step": 1})
    with log.path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(DataError, match=r"log\.jsonl, line 2: is not a record of a run; remove"):
        log.rewind(5)
