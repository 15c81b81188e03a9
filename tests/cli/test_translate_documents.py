"""`outrider translate` with documents: names of the results, mistakes, and interrupted runs."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outrider.cli import documents
from outrider.cli.main import run
from tests.helpers.drafted import save_translator

CUE = "{}\n00:00:{:02d},000 --> 00:00:{:02d},500\nA small <i>dog</i> runs {}.\n\n"
SUBTITLES = "".join(CUE.format(n, n, n, n) for n in range(1, 13))
SLOW = """
import sys, time
from outrider.cli import documents
from outrider.cli.main import main
from outrider.jobs import text_file
text_file.SAVE_EVERY, documents.WINDOW = 0, 1
usual = documents.translate_marked
def slow(*values):
    time.sleep(0.8)
    return usual(*values)
documents.translate_marked = slow
main()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_translator(tmp_path_factory.mktemp("model"), drafter=False)


@pytest.fixture
def film(tmp_path) -> Path:
    path = tmp_path / "film.srt"
    path.write_text(SUBTITLES)
    return path


def test_the_translation_stands_beside_the_document(model, film, capsys) -> None:
    run(["translate", "-m", str(model), str(film)])
    written = film.with_name("film.translated.srt")
    assert capsys.readouterr().out.strip() == str(written)
    found = written.read_text()
    assert found.count("-->") == 12
    assert found.count("<i>") == found.count("</i>") == 12
    assert found != SUBTITLES
    assert not written.with_name(f"{written.name}.partial").exists()


def test_out_names_a_file_or_a_folder(model, film, tmp_path) -> None:
    run(["translate", "-m", str(model), str(film), "--out", str(tmp_path / "other.srt")])
    folder = tmp_path / "out"
    folder.mkdir()
    run(["translate", "-m", str(model), str(film), "--out", str(folder)])
    name = "film.translated.srt"
    assert (folder / name).read_text() == (tmp_path / "other.srt").read_text()
    assert documents.output_paths([film], None, "pt-BR")[0].name == "film.pt-BR.srt"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.srt"], "missing.srt: no such file"),
        (["FILM", "a text"], "TEXT: 'a text' is not a document"),
        (["FILM", "--out", "film.vtt"], "has another suffix"),
        (["FILM", "--out", "FILM"], "is also the input"),
        (["FILM", "FILM"], "two documents would be written"),
        (["a.pdf"], "pdf files cannot be translated"),
        (["FILM", "--n-best", "2"], "--n-best: has no effect"),
    ],
)
def test_mistakes_are_named(model, film, tmp_path, monkeypatch, capsys, arguments, message) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pdf").touch()
    given = [str(film) if word == "FILM" else word for word in arguments]
    assert run(["translate", "-m", str(model), *given]) != 0
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.glob("*translated*")] == []


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_document_continues(model, film, tmp_path, end, capsys) -> None:
    whole, out = tmp_path / "whole.srt", tmp_path / "out.srt"
    run(["translate", "-m", str(model), str(film), "--out", str(whole)])
    line = ["translate", "-m", str(model), str(film), "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-c", SLOW, *line], stderr=subprocess.PIPE)
    state = out.with_name("out.srt.partial") / "state.json"
    try:
        deadline = time.monotonic() + 60
        while not state.exists() or b'"rows": 3' not in state.read_bytes():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(end)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert not out.exists()
    if end == signal.SIGINT:
        assert process.returncode == 130
        assert b"of 12 texts of out.srt are done; the same command continues" in errors
    capsys.readouterr()
    run(line)
    assert "texts are done in" in capsys.readouterr().err
    assert out.read_text() == whole.read_text()


def test_a_changed_document_starts_again(model, film, tmp_path, capsys) -> None:
    out = tmp_path / "out.srt"
    line = ["translate", "-m", str(model), str(film), "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-c", SLOW, *line], stderr=subprocess.DEVNULL)
    state = out.with_name("out.srt.partial") / "state.json"
    try:
        deadline = time.monotonic() + 60
        while not state.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    film.write_text(SUBTITLES + CUE.format(13, 13, 13, 13))
    run(line)
    assert "the input changed; starting again" in capsys.readouterr().err
    assert out.read_text().count("-->") == 13
