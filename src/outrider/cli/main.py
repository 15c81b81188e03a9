"""The `outrider` command. Commands parse, call one library function, and print; nothing else.

A user's mistake is one line on stderr and exit code 2; a bug keeps its traceback. What another part
does instead of the one asked for is one line on stderr as well.
"""

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from outrider import __version__
from outrider.cli.bench_attention import bench_attention
from outrider.cli.bench_decode import bench_decode
from outrider.cli.bench_modes import bench_exact, bench_modes
from outrider.cli.bench_train import bench_train
from outrider.cli.compare import compare
from outrider.cli.config import config
from outrider.cli.distill import distill
from outrider.cli.doctor import doctor
from outrider.cli.evaluate import evaluate
from outrider.cli.export import export
from outrider.cli.prepare import prepare
from outrider.cli.show import show_tandem
from outrider.cli.show_attention import show_attention
from outrider.cli.show_pattern import show_pattern
from outrider.cli.train import train
from outrider.cli.translate import generate, translate
from outrider.errors import FallbackWarning, OutriderError

__all__ = ["app", "main", "run"]

_SHORTAGES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
bench = typer.Typer(help="Measure speed, quality and exactness side by side.", no_args_is_help=True)
app.add_typer(bench, name="bench")
show = typer.Typer(help="See what a model does.", no_args_is_help=True)
app.add_typer(show, name="show")

for _command in (prepare, train, distill, evaluate, compare, translate, generate, export, config):
    app.command()(_command)
app.command()(doctor)
bench.command("train")(bench_train)
bench.command("decode")(bench_decode)
bench.command("attention")(bench_attention)
bench.command("modes")(bench_modes)
bench.command("exact")(bench_exact)
show.command("tandem")(show_tandem)
show.command("attention")(show_attention)
show.command("pattern")(show_pattern)


@app.callback(invoke_without_command=True)
def outrider(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of user errors.")] = False,
) -> None:
    """Train, speed up and serve sequence-to-sequence and language models."""
    if version:
        typer.echo(f"outrider {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; unexpected errors pass through."""
    # Read here and not by Typer, so that it may stand anywhere on the line.
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        with _fallbacks_in_one_line():
            code = app(arguments, standalone_mode=False, prog_name="outrider") or 0
        sys.stdout.flush()
    except (OutriderError, OSError, MemoryError, typer.Abort, typer.TyperException) as error:
        if debug:
            traceback.print_exc()
        return _report(error)
    if code == 130:
        _say("interrupted")
    return int(code)


@contextmanager
def _fallbacks_in_one_line() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("default", FallbackWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, FallbackWarning):
                _say(str(message), typer.colors.YELLOW)
            else:
                usual(message, category, *place, **more)

        warnings.showwarning = show
        yield


def _report(error: BaseException) -> int:
    """Say in one line what went wrong and return the exit code."""
    if isinstance(error, BrokenPipeError):
        return _close_stdout()
    if isinstance(error, OutriderError):
        _say(str(error))
    elif isinstance(error, MemoryError):
        _say("the machine ran out of memory; try a smaller batch or a shorter input")
    elif isinstance(error, OSError):
        if error.errno not in _SHORTAGES:
            raise error
        _close_stdout()
        _say(": ".join(str(part) for part in (error.filename, error.strerror) if part))
    elif isinstance(error, typer.TyperException):
        _say_usage(error)
    else:
        _say("stopped: no input")
    return 2


def _say_usage(error: typer.TyperException) -> None:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    if message:  # empty where Typer has already printed the help text
        _say(f"{message.rstrip('.')}{hint}")


def _say(message: str, colour: str = typer.colors.RED) -> None:
    shown = None if os.environ.get("NO_COLOR") else colour
    typer.secho(f"outrider: {' '.join(message.split())}", fg=shown, err=True)


def _close_stdout() -> int:
    """Let nothing more be written to a reader that has gone or a disk that is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
