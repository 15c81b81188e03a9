"""Session and fixed batches are compared and write the same."""

import json

import pytest

from outrider.cli.main import run
from outrider.errors import OutriderError
from outrider.runtime import load
from outrider_lab.bench.session.measure import measure_session, watch_batches, watch_session
from tests.helpers.drafted import TEXT, save_translator

LINES = [TEXT[n % len(TEXT)] for n in (0, 1, 2, 1, 0, 2, 2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_translator(tmp_path_factory.mktemp("translator"))


@pytest.fixture(scope="module")
def translator(folder):
    translator = load(folder, device="cpu")
    translator.defaults["max_new_tokens"] = 10
    return translator


def check_stays(stays, rows: int) -> None:
    """Each text occurs once, and no row holds two texts at a time."""
    assert sorted(stay.text for stay in stays) == list(range(len(LINES)))
    held = {(stay.place, n) for stay in stays for n in range(stay.first, stay.last)}
    assert len(held) == sum(stay.last - stay.first for stay in stays)
    assert {stay.place for stay in stays} <= set(range(rows))


def test_session_leaves_no_row_empty_while_texts_wait(translator) -> None:
    batches = watch_batches(translator, LINES, rows=2)
    session = watch_session(translator, LINES, rows=2)
    for stays in (batches, session):
        check_stays(stays, 2)
    lengths = {stay.text: stay.last - stay.first for stay in batches}
    assert {stay.text: stay.last - stay.first for stay in session} == lengths
    begun = max(stay.first for stay in session)
    held = {(stay.place, n) for stay in session for n in range(stay.first, min(stay.last, begun))}
    assert len(held) == 2 * begun
    assert max(stay.last for stay in session) <= max(stay.last for stay in batches)


def test_both_variants_are_timed_and_write_the_same(translator) -> None:
    result = measure_session(translator, LINES, rows=2, modes=["ar"], repeats=2)
    (found,) = result["modes"]
    assert found["ratio"] > 0
    assert found["same_text"]
    assert {name: len(times) for name, times in found["seconds"].items()} == {
        "batches": 2,
        "session": 2,
    }


def test_different_texts_are_an_error(translator, monkeypatch) -> None:
    monkeypatch.setattr("outrider_lab.bench.session.measure._batches", lambda *given: [])
    with pytest.raises(OutriderError, match="session and batches wrote different"):
        measure_session(translator, LINES, rows=2, modes=["ar"], repeats=1)


def test_the_command_writes_result_and_picture(folder, tmp_path, capsys) -> None:
    lines, out, png = (tmp_path / name for name in ("lines.txt", "out.json", "out.png"))
    lines.write_text("\n".join(LINES), encoding="utf-8")
    given = ["lab", "bench", "session", str(folder), "--source", str(lines), "--rows", "2"]
    few = ["--repeats", "1", "--lines", "4", "--mode", "ar"]
    assert run([*given, *few, "--json", str(out), "--png", str(png)]) == 0
    assert json.loads(out.read_text())["modes"][0]["same_text"]
    assert png.stat().st_size > 10_000
    assert "times as fast" in capsys.readouterr().out
    assert run([*given, "--mode", "beam"]) != 0
    assert "got 'beam', expected ar or tandem" in capsys.readouterr().err
