"""Options of commands that decode: decode options from their table, and the device and backend."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import new_console
from outrider.errors import ConfigError
from outrider.options import OPTIONS, DecodeConfig, Option

if TYPE_CHECKING:
    from outrider.decoding.statistics import Statistics

MODEL_HELP = "Model folder, or id of a Hub model."
Command = Callable[..., None]
Decorator = Callable[[Command], Command]
Model = Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)]

Index = Annotated[str | None, typer.Option(help="URL or folder of the only list of models.")]
Small = Annotated[bool, typer.Option("--small", help="Prefer the smallest model of a pair.")]
Offline = Annotated[bool, typer.Option("--offline", help="Never download a model.")]


def placement(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[
        str | None, typer.Option(help="int8 (native), float32, bfloat16 or float16.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="native, torch, or auto: native where it is installed.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
) -> None:
    """Declare the device and backend options of `load`."""


def naming(index: Index = None, small: Small = False, offline: Offline = False) -> None:
    """Declare the options of commands that take models by name."""


def _parameter(option: Option) -> inspect.Parameter:
    """Return the parameter of Typer for a decode option."""
    kind: Any = option.kind if option.kind in (bool, int, float) else str
    flag = [f"--{option.name}"] if kind is bool else []
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if kind is bool else None,
        annotation=Annotated[kind | None, typer.Option(*flag, help=option.help)],
    )


def decodes(*names: str, without: Sequence[str] = ()) -> Decorator:
    """Add decode options, by default all, to a command, which receives the given ones."""
    chosen = names or [name for name, row in OPTIONS.items() if row.help and name not in without]
    return _adding("options", [_parameter(OPTIONS[name]) for name in chosen])


def places(command: Command) -> Command:
    """Add the device and backend options to a command, which receives them as `place`."""
    return _adding("place", inspect.signature(placement).parameters.values())(command)


def names_models(command: Command) -> Command:
    """Add the options of models by name to a command, which receives them as `lists`."""
    return _adding("lists", inspect.signature(naming).parameters.values())(command)


def _adding(name: str, parameters: Iterable[inspect.Parameter]) -> Decorator:
    """Add parameters to a command, which receives the given ones as the dictionary `name`."""
    added = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]

    def add(command: Command) -> Command:
        @wraps(command)
        def call(**values: Any) -> None:
            chosen = {p.name: values.pop(p.name) for p in added}
            given = {k: v for k, v in chosen.items() if v is not None and v is not False}
            command(**values, **{name: given})

        own = [p for p in inspect.signature(command).parameters.values() if p.name != name]
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        call.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        return call

    return add


def check(options: Mapping[str, Any]) -> DecodeConfig:
    """Validate options of the command line before the model is loaded."""
    try:
        return DecodeConfig(**options)
    except ConfigError as error:
        raise ConfigError(f"--{error.key.replace('_', '-')}", error.message) from error


def print_statistics(stats: "Statistics") -> None:
    """Print drafting statistics to stderr."""
    from rich.table import Table

    table = Table("measure", "value", title="statistics")
    table.add_row("rounds", f"{stats.rounds:,}")
    table.add_row("tokens per round", f"{stats.tokens_per_round:.2f}")
    by_place = " ".join(f"{share:.0%}" for share in stats.acceptance_by_position)
    table.add_row("drafts accepted up to position 1, 2, ...", by_place or "-")
    table.add_row("rows decoded without drafting", f"{stats.plain_rows:,}")
    if stats.rechecked:
        table.add_row("near-ties computed again", f"{stats.rechecked:,}")
    for part, seconds in stats.seconds.items():
        table.add_row(f"seconds in {part}", f"{seconds:.3f}")
    console = new_console(stderr=True)
    console.print(table)
    for note in stats.notes:
        console.print(note, highlight=False)
