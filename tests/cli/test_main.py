"""The command line: fast help, one line per mistake, exit codes."""

import errno
import os
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from outrider import __version__
from outrider.cli import main
from outrider.errors import DataError, FallbackWarning

COMMANDS = [
    ["prepare"],
    ["train"],
    ["evaluate"],
    ["translate"],
    ["generate"],
    ["config"],
    ["doctor"],
    ["bench"],
    ["jobs", "status"],
    ["show", "pattern"],
]

Command = Callable[..., subprocess.CompletedProcess[str]]

SHORT = "the machine ran out of memory; try a smaller batch or a shorter input"

HEAVY = ["torch", "transformers", "pyarrow", "datasets", "sacrebleu", "matplotlib", "numpy"]

HELP_ONLY = f"""
import sys
from outrider.cli.main import run
code = run(sys.argv[1:])
print("LOADED", *(name for name in {HEAVY} if name in sys.modules))
sys.exit(code)
"""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Replace all commands by one function."""

    def replace(function: Callable[[], None]) -> None:
        app = typer.Typer(pretty_exceptions_enable=False)
        app.callback(invoke_without_command=True)(main.outrider)
        app.command("act")(function)
        monkeypatch.setattr(main, "commands", lambda wanted: get_command(app))

    return replace


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def outrider(
    *arguments: str, stdout: Any, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", "from outrider.cli.main import main; main()", *arguments]
    return subprocess.run(line, text=True, stdout=stdout, stderr=subprocess.PIPE, env=env)


PRINT = """
import typer
from outrider.cli import main

def act() -> None:
    print("buffered until the end")

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(act)
main.build_app = lambda wanted: app
main.main()
"""


def printing(*, stdout: Any) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", PRINT]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(line, env=buffered, text=True, stdout=stdout, stderr=subprocess.PIPE)


# --- help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], *COMMANDS], ids=" ".join)
def test_help_imports_few_modules_and_is_fast(words: list[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", HELP_ONLY, *words, "--help"], capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert " ".join(["Usage: outrider", *words]) in done.stdout
    assert done.stdout.splitlines()[-1] == "LOADED"
    # Processor time: wall-clock time depends on the load of the machine.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5


def test_help_names_every_command_and_colours_only_terminals() -> None:
    done = outrider("--help", stdout=subprocess.PIPE)
    for words in COMMANDS:
        assert f" {words[0]} " in done.stdout
    assert "\x1b" not in done.stdout


def test_help_uses_the_full_width() -> None:
    done = outrider(
        "translate", "--help", stdout=subprocess.PIPE, env=os.environ | {"COLUMNS": "80"}
    )
    assert " an old file unchanged, and with" in done.stdout


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 0
    assert "Usage: outrider" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"outrider {__version__}\n"


# --- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (DataError("a.txt line 3:\n is empty"), 2, "a.txt line 3: is empty"),
        (OSError(errno.ENOSPC, "No space left on device", "x"), 2, "x: No space left on device"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 2, "x: Permission denied"),
        (OSError(errno.EIO, "broken disk"), 2, "broken disk"),
        (OSError("no such model on the Hub"), 2, "no such model on the Hub"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), 2, SHORT),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), 2, SHORT),
        (MemoryError(), 2, SHORT),
        (EOFError(), 2, "stopped: no input"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=repr,
)
def test_errors_are_one_line(
    command: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    monkeypatch.setattr(main, "_close_stdout", lambda: 1)
    command(raising(error))
    assert main.run(["act"]) == code
    assert capfd.readouterr().err.strip() == f"outrider: {line}"


def test_a_fallback_is_printed_once_on_one_line(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def act() -> None:
        for _ in range(3):
            warnings.warn("the core does not\n compute this", FallbackWarning, stacklevel=1)

    command(act)
    for _ in range(2):  # each command prints it once
        assert main.run(["act"]) == 0
        assert capsys.readouterr().err == "outrider: the core does not compute this\n"


def test_other_warnings_are_unchanged(command: Callable[..., None]) -> None:
    def act() -> None:
        warnings.warn("something else", UserWarning, stacklevel=1)

    command(act)
    shown = warnings.showwarning
    with pytest.warns(UserWarning, match="something else"):
        assert main.run(["act"]) == 0
    assert warnings.showwarning is shown


@pytest.mark.parametrize("line", [["--debug", "act"], ["act", "--debug"]])
def test_debug_shows_the_traceback_in_any_position(
    command: Callable[..., None], capsys: pytest.CaptureFixture[str], line: list[str]
) -> None:
    command(raising(DataError("a.txt is empty")))
    assert main.run(line) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ValueError("a bug"), RuntimeError("a bug")])
def test_bugs_keep_their_traceback(command: Callable[..., None], error: Exception) -> None:
    command(raising(error))
    with pytest.raises(type(error), match="a bug"):
        main.run(["act"])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'? (see outrider --help)"),
        (["show", "x"], "No such command 'x' (see outrider show --help)"),
        (["config", "--nope"], "No such option: --nope (see outrider config --help)"),
    ],
)
def test_usage_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    assert main.run(words) == 2
    assert capsys.readouterr().err == f"outrider: {line}\n"


def test_a_group_alone_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["show"]) == 2
    captured = capsys.readouterr()
    assert "Usage: outrider show" in captured.out
    assert captured.err == ""


def show_help(*, stdout: Any) -> subprocess.CompletedProcess[str]:
    return outrider("--help", stdout=stdout)


@pytest.mark.parametrize("command", [show_help, printing])
def test_a_closed_pipe_prints_no_error(command: Command) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = command(stdout=writer)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", [show_help, printing])
def test_a_full_disk_behind_stdout_is_one_line(command: Command) -> None:
    with Path("/dev/full").open("w") as full:
        done = command(stdout=full)
    assert done.stderr == "outrider: No space left on device\n"
    assert done.returncode == 2


CLOSED = """
import os, sys
from outrider.cli.main import main
sys.argv = ["outrider", "--version"]
main()
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_print_no_error(closed: str) -> None:
    line = ["bash", "-c", f'"$0" -c "$1" {closed}', sys.executable, CLOSED]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if " >&-" in f" {closed}" else f"outrider {__version__}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])  # with a buffer, Python writes again at exit
def test_a_full_stderr_gives_no_traceback(unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        line = [sys.executable, "-c", "from outrider.cli.main import main; main()", "trian"]
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        assert subprocess.run(line, stderr=full, env=environment).returncode == 2


def test_an_interrupt_outside_a_command_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "commands", stopped)
    assert main.run(["train"]) == 130
    assert capsys.readouterr().err == "outrider: interrupted\n"


def test_the_console_script_exits_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["outrider", "trian"])
    with pytest.raises(SystemExit, match="2"):
        main.main()


# --- config -------------------------------------------------------------------------------------


@pytest.fixture
def run_file(tmp_path: Path) -> str:
    path = tmp_path / "run.yaml"
    path.write_text(
        "name: a\nfolder: runs/a\ndata: {folder: p, valid_rows: 9, train: {pairs: x.tsv}}\n"
    )
    return str(path)


def test_config_prints_the_values_of_a_run(
    run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["config", run_file, "train.steps=7", "model.hidden_size=64"]) == 0
    printed = capsys.readouterr().out
    assert "steps: 7\n" in printed
    assert "hidden_size: 64\n" in printed
    again = tmp_path / "resolved.yaml"
    again.write_text(printed)
    assert main.run(["config", str(again)]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["config"], "config: needs a file: outrider config RUN.yaml, or --explain"),
        (["config", "no.yaml"], "no.yaml: no such config file"),
        (["config", "RUN", "train.setps=5"], "train.setps: unknown key (did you mean 'steps'?)"),
        (["config", "RUN", "train.steps=x"], "train.steps: got 'x', expected a valid integer"),
        (["config", "RUN", "train.steps"], "train.steps: an override is written key=value"),
        (["config", "RUN", "model.hiden_size=8"], "model.hiden_size: unknown key"),
        (
            ["config", "--explain", "trian"],
            "trian: no such key (did you mean 'train'?); outrider config --explain lists all",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_config_mistakes(
    run_file: str, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    assert main.run([run_file if word == "RUN" else word for word in words]) == 2
    assert capsys.readouterr().err.startswith(f"outrider: {line}")


def test_explain_lists_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["config", "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    keys = {line.split(":")[0] for line in lines if not line.startswith(" ")}
    expected = {"name", "data.train.source", "train.steps", "model.type", "model.hidden_size"}
    assert expected <= keys
    assert "name: str (required)" in lines


def test_explain_one_section_or_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["config", "--explain", "train", "data.clean.max_ratio"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert all(line.startswith(("train", "data.clean.max_ratio")) for line in lines)
    assert sum(line.startswith("train.") for line in lines) > 5


def test_every_key_is_explained() -> None:
    from outrider.config import explain
    from outrider.run_config import RunConfig

    assert [field.key for field in explain(RunConfig) if not field.text] == []
