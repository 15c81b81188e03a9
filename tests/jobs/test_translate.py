"""`outrider translate --shards`: each file is translated once, also after an interruption."""

import gzip
import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli.main import build_app, run
from outrider.errors import ConfigError, DataError
from outrider.jobs import translate as module
from outrider.jobs.folder import read_status
from outrider.jobs.translate import translate_shards
from outrider.runtime import load

LINES = {
    "a.txt": ["ab cd.", "", "dd a"],
    "b.txt": ["cc dd ab.", "a"],
    "c.txt": ["bad dab.", "abcd", "c b a."],
    "empty.txt": [],
}
PLACE = {"threads": 1, "dtype": "float32", "device": "cpu"}


@pytest.fixture
def model(home: Path) -> Path:
    return home / "model"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, lines in LINES.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    plain = folder / "b.txt"
    (folder / "b.txt.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    return folder


@pytest.fixture
def expected(model: Path) -> dict[str, str]:
    loaded = load(model, **PLACE)
    return {
        name: "".join(f"{text}\n" for text in loaded.translate(lines))
        for name, lines in LINES.items()
    }


def translated(model: Path, source: Path, out: Path, **options) -> Path:
    return translate_shards(model, source, out, place=PLACE, progress=False, **options)


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.txt")}


def test_a_file_gets_the_translations_of_its_lines(
    model: Path, source: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    out = translated(model, source, tmp_path / "out")
    assert texts(out) == expected
    assert {path.name for path in out.iterdir()} == {*expected, "translated.json"}
    summary = json.loads((out / "translated.json").read_text())
    assert [one["rows"] for one in summary["files"]] == [3, 2, 3, 0]
    status = read_status(out)
    assert (status.done, status.shards, status.rows_done) == (4, 4, 8)
    stamp = (out / "a.txt").stat().st_mtime_ns
    assert translated(model, source, out) == out
    assert (out / "a.txt").stat().st_mtime_ns == stamp, "nothing was left to do"


def test_sampling_equals_that_of_one_concatenated_file(
    model: Path, source: Path, tmp_path: Path
) -> None:
    drawn = {"strategy": "sample", "seed": 3}
    out = translated(model, source, tmp_path / "out", **drawn)
    everything = [line for lines in LINES.values() for line in lines]
    expected = load(model, **PLACE).translate(everything, **drawn)
    found = [line for name in LINES for line in (out / name).read_text().splitlines()]
    assert found == expected


def test_a_killed_job_is_resumed(
    model: Path,
    source: Path,
    expected: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    original = module._TranslateFile.__call__

    def counted(self, unit, advance) -> None:
        if len(done) == 2:
            (self.folder.path / f".{unit.name}.half").write_text("half a file")
            raise KeyboardInterrupt
        original(self, unit, advance)
        done.append(unit.name)

    with monkeypatch.context() as patch:
        patch.setattr(module._TranslateFile, "__call__", counted)
        with pytest.raises(KeyboardInterrupt):
            translated(model, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert read_status(tmp_path / "out").done == 2
    (source / "a.txt").write_text("dd a\n")  # finished, but the source has changed

    again: list[str] = []
    monkeypatch.setattr(
        module._TranslateFile,
        "__call__",
        lambda self, unit, advance: again.append(unit.name) or original(self, unit, advance),
    )
    out = translated(model, source, tmp_path / "out")
    assert done == ["a.txt", "b.txt"]
    assert again == ["a.txt", "c.txt", "empty.txt"]
    assert texts(out) == {**expected, "a.txt": expected["a.txt"].splitlines(keepends=True)[2]}
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


def test_unreadable_files_are_set_aside(
    model: Path, source: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    whole = (source / "b.txt.gz").read_bytes()
    (source / "b.txt.gz").write_bytes(whole[:12])
    with pytest.raises(DataError, match=r"b\.txt\.gz.*set aside 1 of 4 shards \(of b\.txt\.gz\)"):
        translated(model, source, tmp_path / "out")
    assert list(read_status(tmp_path / "out").aside) == ["b.txt"]
    (source / "b.txt.gz").write_bytes(whole)
    assert texts(translated(model, source, tmp_path / "out")) == expected


def test_files_that_are_not_text_are_set_aside(
    model: Path, source: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    (source / "a.txt").write_bytes(b"PK\x03\x04 and what a zip archive holds")
    with pytest.raises(DataError, match=r"a\.txt: is a zip archive .*; set aside 1 of 4 shards"):
        translated(model, source, tmp_path / "out")
    kept = texts(tmp_path / "out.partial")
    assert {name: kept[name] for name in ("b.txt", "c.txt")} == {
        name: expected[name] for name in ("b.txt", "c.txt")
    }


def test_other_settings_and_other_files_do_not_mix(
    model: Path, source: Path, tmp_path: Path
) -> None:
    out = translated(model, source, tmp_path / "out")
    with pytest.raises(DataError, match=r"out: was done differently \(decode was"):
        translated(model, source, out, strategy="beam", beams=2)
    (source / "c.txt").write_text("a\n")
    with pytest.raises(DataError, match=r"out: c\.txt was translated from another file"):
        translated(model, source, out)
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match="other: exists and is not a translation"):
        translated(model, source, tmp_path / "other")
    (source / "b.txt").write_text("a\n")
    with pytest.raises(DataError, match=r"in: has b\.txt both plain and gzipped"):
        translated(model, source, tmp_path / "new")
    (source / "b.txt").rename(source / "origin.json")
    with pytest.raises(DataError, match=r"in: origin\.json is a name that jobs reserve"):
        translated(model, source, tmp_path / "new")
    with pytest.raises(DataError, match="nowhere: is not a folder"):
        translated(model, tmp_path / "nowhere", tmp_path / "new")
    with pytest.raises(ConfigError, match="workers: got 0"):
        translated(model, source, tmp_path / "new", workers=0)


def test_the_command(
    model: Path,
    source: Path,
    expected: dict[str, str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    place = ["--no-guard", "-m", str(model), "--dtype", "float32", "--threads", "1"]
    asked = ["translate", *place, "--shards", str(source)]
    result = CliRunner().invoke(build_app(), [*asked, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(tmp_path / "out")
    assert texts(tmp_path / "out") == expected
    assert run(asked) == 2
    assert "--out: is required with --shards" in capfd.readouterr().err
    assert run([*asked, "--in", "x", "--out", "y"]) == 2
    assert "--shards: cannot be combined with --in" in capfd.readouterr().err
    assert run(["translate", *place, "--workers", "2", "hello"]) == 2
    assert "--workers: has no effect without --shards" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.skipif(find_spec("ray") is None, reason="needs outrider[ray]")
def test_workers_of_ray_write_the_same(
    model: Path,
    source: Path,
    expected: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2])]))
    assert texts(translated(model, source, tmp_path / "out", workers=2)) == expected
