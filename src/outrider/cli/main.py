"""The `outrider` command. Commands parse, call one library function, and print; nothing else.

A user's mistake is one line on stderr and exit code 2; a bug keeps its traceback. What another part
does instead of the one asked for is one line on stderr as well.

Words of a command line as values, where that is plain.

Typer builds a validator of pydantic's for every parameter of a command, given or not, which takes
longer than to load a model and translate a sentence. A parameter that is not given needs none, nor
does a word or a whole number that reads as one. Whatever else there is to say of a value, what is
wrong with it above all, Typer says as ever.
"""

import gc
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

__all__ = ["build_app", "commands", "main", "read_plainly", "run"]

WHOLE = re.compile(r"-?[0-9]{1,9}")


def read_plainly(command: Any) -> None:
    """Let the parameters of a command, and of those below it, read plain values by themselves."""
    for inner in getattr(command, "commands", {}).values():
        read_plainly(inner)
    listed = command.get_params

    def get_params(context: Any) -> Any:
        found = listed(context)  # `--help` is added here
        for parameter in found:
            if getattr(parameter, "_runtime_param", parameter) is None:
                parameter._runtime_param = _Plain()
        return found

    command.get_params = get_params


class _Plain:
    """Stands where Typer puts a validator when it first needs one."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter; what is not plain is left to Typer from then on."""
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        wanted, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        if wanted is str and type(value) is str:
            return value
        if many and wanted == list[str] and all(type(one) is str for one in value):
            return list(value)
        bounded = info.min is not None or info.max is not None
        if wanted is int and type(value) is str and WHOLE.fullmatch(value) and not bounded:
            return int(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


OURS = (FallbackWarning, ScriptWarning, SettingsWarning)
"""Warnings that are printed in one line."""
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
    "key": "key:key",
    "student": "student:student",
    "shrink": "shrink:shrink",
    "export": "export:export",
    "bench": "bench:bench",
    "config": "config:config",
    "doctor": "doctor:doctor",
    "jobs status": "jobs:jobs_status",
    "show tandem": "show:show_tandem",
    "show attention": "show_attention:show_attention",
    "show pattern": "show_pattern:show_pattern",
    "show positions": "show_positions:show_positions",
    "show effort": "show_effort:show_effort",
    "show spans": "show_effort:show_spans",
}
"""Command words: the module in `outrider.cli` and the function."""
GROUPS = {
    "jobs": "Watch work on a whole corpus.",
    "show": "See what a model does.",
}
LAB = "lab"
EPILOG = "`outrider lab` compares models and engines; it is installed from a clone."
MOVED = (
    "compare",
    *(
        f"bench {word}"
        for word in (
            "train",
            "decode",
            "session",
            "serve",
            "start",
            "attention",
            "jobs",
            "modes",
            "exact",
        )
    ),
)
"""Command words that are now behind `outrider lab`."""


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
    """Build the command tree once a process; only one command where `wanted` names it."""
    command = get_command(build_app(wanted))
    read_plainly(command)
    return command


def build_app(wanted: str | None = None, *, lab: bool = False) -> typer.Typer:
    """Build the command tree, or only one command where `wanted` names it, which takes less time.

    `lab` adds the commands of `outrider lab`; so does a `wanted` that begins with it.
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
            found = getattr(import_module(f"{table.package}.{module}"), function)
            groups.get(first, app).command(second or first)(found)


def _lab_commands() -> CommandTable:
    """Find the commands of the package `outrider-lab` by its entry point."""
    from importlib.metadata import entry_points

    for point in entry_points(group="outrider.commands", name=LAB):
        return CommandTable(*point.load())
    raise MissingLabError


def _wanted(arguments: Sequence[str]) -> str | None:
    """Return the command that a line begins with; None where all are needed for a message."""
    words = (arguments[0], " ".join(arguments[:2])) if arguments else ()
    for line in words:
        if line in MOVED:
            raise ConfigError(line, f"has moved; use outrider lab {line}")
    return next((line for line in words if line in COMMANDS or line == LAB), None)


def main() -> None:
    """Entry point of the console script."""
    gc.set_threshold(100_000)  # what is imported stays: looking through it takes a tenth of a start
    _occupy_descriptors()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; unexpected errors pass through."""
    # Read here and not by Typer, so that it may stand anywhere on the line.
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        with _open_streams(), _warnings_in_one_line():
            code = (
                commands(_wanted(arguments))(arguments, standalone_mode=False, prog_name="outrider")
                or 0
            )
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        found = _report(_explained(error, arguments))
        if found is None:
            raise
        if debug:
            traceback.print_exc()
        return found
    if code == 130:
        _say("interrupted")
    return int(code)


def _explained(error: Exception, arguments: Sequence[str]) -> Exception:
    """Say what to install where a command needs more than decoding does."""
    if not isinstance(error, ModuleNotFoundError):
        return error
    words = [word for word in arguments if not word.startswith("-")]
    depth = 3 if words[:2] == [LAB, "bench"] else 2 if words[0] in (*GROUPS, LAB) else 1
    return missing_extra(error, " ".join(["outrider", *words[:depth]]))


def _occupy_descriptors() -> None:
    """Let no file that is opened later take the place of a closed stdin, stdout or stderr."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one


@contextmanager
def _open_streams() -> Iterator[None]:
    """Write nowhere where stdout or stderr is closed."""
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
                _say(str(message), typer.colors.YELLOW)
            else:
                usual(message, category, *place, **more)

        warnings.showwarning = show
        yield


def _report(error: Exception) -> int | None:
    """Say in one line what went wrong and return the exit code; None for a bug."""
    if isinstance(error, BrokenPipeError):
        return _close_stdout()
    if isinstance(error, StoppedError):
        _say(str(error))
        return 130
    if isinstance(error, OutriderError):
        _say(str(error))
    elif is_out_of_memory(error):
        _say("the machine ran out of memory; try a smaller batch or a shorter input")
    elif isinstance(error, OSError):
        try:
            sys.stdout.flush()
        except (OSError, AttributeError, ValueError):
            _close_stdout()
        reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
        _say(": ".join(str(part) for part in (error.filename, reason) if part))
    elif isinstance(error, typer.TyperException):
        _say_usage(error)
    elif isinstance(error, typer.Abort):
        _say("stopped: no input")
    else:
        return None
    return 2


def _say_usage(error: typer.TyperException) -> None:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    if message:  # empty where Typer has already printed the help text
        _say(f"{message.rstrip('.')}{hint}")


def _say(message: str, colour: str = typer.colors.RED) -> None:
    shown = None if os.environ.get("NO_COLOR") else colour
    try:
        typer.secho(f"outrider: {' '.join(message.split())}", fg=shown, err=True)
    except (OSError, AttributeError):  # a stderr that is full or closed hears nothing
        _silence(sys.stderr)


def _close_stdout() -> int:
    """Let nothing more be written to a reader that has gone or a disk that is full."""
    _silence(sys.stdout)
    return 1


def _silence(stream: Any) -> None:
    """Lead a stream nowhere: what it still holds would be written at exit, and change the code."""
    with suppress(OSError, AttributeError):  # closed already
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
