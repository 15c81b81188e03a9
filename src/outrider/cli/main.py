"""The `outrider` command.

A user error is one line on stderr with exit code 2; a bug keeps its traceback. Commands parse their
options, call one library function and print the result.

Typer builds a pydantic validator for every parameter, given or not, which takes longer than to load
a model and translate a sentence. `read_plainly` skips it for parameters that are not given, strings
and plain integers.
"""

import gc
import inspect
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.main import get_command

from outrider import __version__
from outrider.cli.console import Nowhere, StoppedError
from outrider.errors import (
    ConfigError,
    FallbackWarning,
    MissingLabError,
    OutriderError,
    ScriptWarning,
    SettingsWarning,
    is_out_of_memory,
    missing_extra,
)

WHOLE = re.compile(r"-?[0-9]{1,9}")


def read_plainly(command: Any) -> None:
    """Parse plain parameter values of a command and its subcommands without Typer's validators."""
    for inner in getattr(command, "commands", {}).values():
        read_plainly(inner)
    listed = command.get_params

    def get_params(context: Any) -> Any:
        parameters = listed(context)  # includes `--help`
        for parameter in parameters:
            if getattr(parameter, "_runtime_param", parameter) is None:
                parameter._runtime_param = _Plain()
        return parameters

    command.get_params = get_params


class _Plain:
    """Replaces Typer's lazily built validator of a parameter."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert a plain value; build Typer's validator for any other."""
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        kind, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        if kind is str and type(value) is str:
            return value
        if many and kind == list[str] and all(type(item) is str for item in value):
            return list(value)
        bounded = info.min is not None or info.max is not None
        if kind is int and type(value) is str and WHOLE.fullmatch(value) and not bounded:
            return int(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


OURS = (FallbackWarning, ScriptWarning, SettingsWarning)
"""Warnings that are printed as one line."""
COMMANDS = {
    "prepare": "prepare:prepare",
    "plan": "plan:plan",
    "train": "train:train",
    "distill": "distill:distill",
    "accelerate": "accelerate:accelerate",
    "evaluate": "evaluate:evaluate",
    "translate": "translate:translate",
    "generate": "translate:generate",
    "serve": "serve:serve",
    "models": "models:models",
    "pull": "pull:pull",
    "key": "key:key",
    "student": "student:student",
    "shrink": "shrink:shrink",
    "export": "export:export",
    "bench": "bench:bench",
    "config": "config:config",
    "doctor": "doctor:doctor",
    "jobs status": "jobs:jobs_status",
    "show tandem": "show:show_tandem",
    "show attention": "show:show_attention",
    "show pattern": "show:show_pattern",
    "show positions": "show:show_positions",
    "show effort": "show:show_effort",
    "show spans": "show:show_spans",
}
"""Command words with their module in `outrider.cli` and function."""
GROUPS = {
    "jobs": "Inspect jobs on a whole corpus.",
    "show": "Visualise models and decoding.",
}
LAB = "lab"
EPILOG = "`outrider lab` compares models and engines; it is installed from a clone."
_MOVED_BENCHES = "train decode session serve start attention jobs modes exact"
MOVED = ("compare", *(f"bench {word}" for word in _MOVED_BENCHES.split()))
"""Command words that moved to `outrider lab`."""


class CommandTable(NamedTuple):
    """Commands of one package."""

    package: str
    commands: Mapping[str, str]
    groups: Mapping[str, str]


def outrider(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of user errors.")] = False,
) -> None:
    """Train sequence-to-sequence and language models, and decode them fast."""
    if version:
        typer.echo(f"outrider {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@cache
def commands(wanted: str | None = None) -> Callable[..., int | None]:
    """Build the command tree, cached; only one command if `wanted` names it."""
    command = get_command(build_app(wanted))
    read_plainly(command)
    return command


def build_app(wanted: str | None = None, *, lab: bool = False) -> typer.Typer:
    """Build the command tree; only one command if `wanted` names it, which takes less time.

    `lab`, or `wanted` equal to it, adds the commands of `outrider lab`.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, epilog=EPILOG)
    app.callback(invoke_without_command=True)(outrider)
    _add(app, CommandTable("outrider.cli", COMMANDS, GROUPS), wanted)
    if lab or wanted == LAB:
        inner = typer.Typer(
            help="Compare with other engines and study the parts.", no_args_is_help=True
        )
        app.add_typer(inner, name=LAB)
        _add(inner, _lab_commands(), None)
    return app


def _add(app: typer.Typer, table: CommandTable, wanted: str | None) -> None:
    groups = {
        name: typer.Typer(help=text, no_args_is_help=True) for name, text in table.groups.items()
    }
    for name, group in groups.items():
        app.add_typer(group, name=name)
    for line, place in table.commands.items():
        if wanted in (None, line):
            first, _, second = line.partition(" ")
            module, _, function = place.partition(":")
            command = getattr(import_module(f"{table.package}.{module}"), function)
            text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(command.__doc__))
            groups.get(first, app).command(second or first, help=text)(command)


def _lab_commands() -> CommandTable:
    """Load the commands of the package `outrider-lab` by its entry point."""
    from importlib.metadata import entry_points

    for point in entry_points(group="outrider.commands", name=LAB):
        return CommandTable(*point.load())
    raise MissingLabError


def _wanted(arguments: Sequence[str]) -> str | None:
    """Return the command of a line; None if it has none, so that all are needed for a message."""
    words = (arguments[0], " ".join(arguments[:2])) if arguments else ()
    for line in words:
        if line in MOVED:
            raise ConfigError(line, f"has moved; use outrider lab {line}")
    return next((line for line in words if line in COMMANDS or line == LAB), None)


def main() -> None:
    """Entry point of the console script."""
    gc.set_threshold(100_000)  # scanning imported modules takes a tenth of the start
    _occupy_descriptors()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; unexpected errors pass through."""
    # Parsed here, so that it is accepted anywhere on the line.
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        with _open_streams(), _warnings_in_one_line():
            command = commands(_wanted(arguments))
            code = command(arguments, standalone_mode=False, prog_name="outrider") or 0
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        reported = _report(_explained(error, arguments))
        if reported is None:
            raise
        if debug:
            traceback.print_exc()
        return reported
    if code == 130:
        _print("interrupted")
    return int(code)


def _explained(error: Exception, arguments: Sequence[str]) -> Exception:
    """Replace a missing optional module by an error that names the extra to install."""
    if not isinstance(error, ModuleNotFoundError):
        return error
    words = [word for word in arguments if not word.startswith("-")]
    depth = 3 if words[:2] == [LAB, "bench"] else 2 if words[0] in (*GROUPS, LAB) else 1
    return missing_extra(error, " ".join(["outrider", *words[:depth]]))


def _occupy_descriptors() -> None:
    """Open /dev/null for closed standard streams, so that no later file gets their descriptors."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one


@contextmanager
def _open_streams() -> Iterator[None]:
    """Replace closed stdout and stderr."""
    closed = [name for name in ("stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:
        setattr(sys, name, Nowhere())
    try:
        yield
    finally:
        for name in closed:
            setattr(sys, name, None)


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    with warnings.catch_warnings():
        for ours in OURS:
            warnings.simplefilter("default", ours)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, OURS):
                _print(str(message), typer.colors.YELLOW)
            else:
                usual(message, category, *place, **more)

        warnings.showwarning = show
        yield


def _report(error: Exception) -> int | None:
    """Print an error as one line and return the exit code; None for a bug."""
    if isinstance(error, BrokenPipeError):
        return _close_stdout()
    if isinstance(error, StoppedError):
        _print(str(error))
        return 130
    if isinstance(error, OutriderError):
        _print(str(error))
    elif is_out_of_memory(error):
        _print("the machine ran out of memory; try a smaller batch or a shorter input")
    elif isinstance(error, OSError):
        try:
            sys.stdout.flush()
        except (OSError, AttributeError, ValueError):
            _close_stdout()
        reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
        _print(": ".join(str(part) for part in (error.filename, reason) if part))
    elif isinstance(error, typer.TyperException):
        _print_usage(error)
    elif isinstance(error, typer.Abort):
        _print("stopped: no input")
    else:
        return None
    return 2


def _print_usage(error: typer.TyperException) -> None:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    if message:  # empty if Typer has already printed the help text
        _print(f"{message.rstrip('.')}{hint}")


def _print(message: str, colour: str = typer.colors.RED) -> None:
    colour_shown = None if os.environ.get("NO_COLOR") else colour
    try:
        typer.secho(f"outrider: {' '.join(message.split())}", fg=colour_shown, err=True)
    except (OSError, AttributeError):  # stderr is full or closed
        _silence(sys.stderr)


def _close_stdout() -> int:
    """Discard further output after the reader has gone or the disk is full."""
    _silence(sys.stdout)
    return 1


def _silence(stream: Any) -> None:
    """Redirect a stream to /dev/null: flushing its buffer at exit would change the exit code."""
    with suppress(OSError, AttributeError):  # already closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
