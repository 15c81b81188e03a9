"""`outrider prepare`: its report, errors in one line, bounded memory."""

import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli.main import build_app, run

YAML = """
name: tiny
folder: {folder}/run
data:
  folder: {folder}/prepared
  root: {folder}
  train: {{source: train.en, target: train.de}}
  valid_rows: 2
  tokenizer: {{kind: char}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for side in ("en", "de"):
        lines = "".join(f"{side} number {n}\n" for n in range(20))
        (tmp_path / f"train.{side}").write_text(lines + "again\nagain\n")
    path = tmp_path / "run.yaml"
    path.write_text(YAML.format(folder=tmp_path))
    return path


def prepare(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(build_app(), ["prepare", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_the_report(config: Path, tmp_path: Path) -> None:
    code, out, err = prepare(config)
    assert code == 0
    assert out.strip() == str(tmp_path / "prepared")
    assert "dropped: duplicate" in err
    assert "19 training pairs" in " ".join(err.split())


def test_a_second_run_does_nothing(config: Path) -> None:
    prepare(config)
    code, _, err = prepare(config)
    assert code == 0
    assert "already prepared, nothing to do" in " ".join(err.split())


def test_overrides_force_and_quiet(config: Path, tmp_path: Path) -> None:
    prepare(config)
    assert run(["prepare", str(config), "data.valid_rows=3"]) == 2
    code, out, err = prepare(config, "data.valid_rows=3", "--force", "--quiet")
    assert (code, out.strip(), err) == (0, str(tmp_path / "prepared"), "")


def test_an_error_is_one_line_and_leaves_no_files(
    config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.de").write_bytes(b"x\n\xff\n" + b"x\n" * 20)
    assert run(["prepare", str(config), "--quiet"]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "train.de, line 2: not UTF-8; fix the line, or set data.clean.on_bad_text" in err
    assert not list(tmp_path.glob("prepared*"))


def start(config: Path, *arguments: str, file_bytes: int | None = None) -> tuple[int, str, float]:
    """Prepare in a new process; return its exit code, stderr and peak memory in MiB.

    `ru_maxrss` would include the memory of the process it was forked from.
    """
    program = (
        "import sys; from outrider.cli.main import run; code = run(sys.argv[1:]); "
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))); "
        "sys.exit(code)"
    )

    def limit() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    done = subprocess.run(
        [sys.executable, "-c", program, "prepare", str(config), "--quiet", *arguments],
        capture_output=True,
        text=True,
        env=os.environ,
        preexec_fn=limit,
    )
    return done.returncode, done.stderr, int(done.stdout.split()[-2]) / 1024


def write_corpus(folder: Path, pairs: int) -> None:
    dice = random.Random(0)
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(5000)]
    for side in ("en", "de"):
        with (folder / f"train.{side}").open("w") as file:
            file.writelines(f"{n} {' '.join(dice.choices(words, k=12))}\n" for n in range(pairs))


def test_a_full_disk_is_one_line_and_leaves_no_files(config: Path, tmp_path: Path) -> None:
    """The system refuses to write beyond a limit, as for a full disk or quota."""
    write_corpus(tmp_path, 3000)
    code, err, _ = start(config, file_bytes=50_000)
    assert code == 2
    assert err.count("\n") == 1
    assert "prepared: the disk is full or a quota is reached; nothing was kept" in err
    assert not list(tmp_path.glob("prepared*"))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(config: Path, tmp_path: Path) -> None:
    peaks = []
    for pairs in (10_000, 50_000):
        write_corpus(tmp_path, pairs)
        code, err, peak = start(config, "--force")
        assert code == 0, err
        peaks.append(peak)
    assert peaks[1] < 1024
    assert peaks[1] - peaks[0] < 200
