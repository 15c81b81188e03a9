"""Options of all commands that decode: decode options, and the device and backend.

They are the parameters of `settings` and `placement`. `decodes` adds them to a command, which
receives the given ones as two dictionaries.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import new_console
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.decoding.statistics import Statistics

MODEL_HELP = "Model folder, or id of a Hub model."
Model = Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)]


def settings(
    mode: Annotated[str | None, typer.Option(help="ar, tandem or parallel.")] = None,
    strategy: Annotated[str | None, typer.Option(help="greedy, sample or beam.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Most new tokens for each input.")
    ] = None,
    min_new_tokens: Annotated[
        int | None, typer.Option(help="Fewest new tokens for each input.")
    ] = None,
    beams: Annotated[int | None, typer.Option(help="Sequences that beam search keeps.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Beam search: above 1 prefers longer output.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling: below 1 is more likely output.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Sampling: draw from the k most likely tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sampling: draw from the tokens with this much probability."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Sampling: input number i has seed + i.")] = None,
    gamma: Annotated[
        float | None,
        typer.Option(
            help="Tandem: weight of the drafter, from 0 (exact) to 1 (accept every draft)."
        ),
    ] = None,
    draft_tokens: Annotated[
        int | None,
        typer.Option(help="Tandem: tokens drafted at once; by default learned while decoding."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Tandem: compute near-ties again, token by token.")
    ] = False,
    decoder: Annotated[
        str | None, typer.Option(help="Parallel: decode with ctc or drafter.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Parallel: passes that predict uncertain tokens again.")
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(help="Sampling, parallel: texts of which the most likely is taken."),
    ] = None,
) -> None:
    """Declare the decode options of `DecodeConfig`."""


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


def decodes(command: Callable[..., None]) -> Callable[..., None]:
    """Add all options to a command, which receives the given ones as `options` and `place`."""
    return _sharing(command, {"options": settings, "place": placement})


def places(command: Callable[..., None]) -> Callable[..., None]:
    """Add the device and backend options to a command, which receives them as `place`."""
    return _sharing(command, {"place": placement})


def _sharing(
    command: Callable[..., None], lists: dict[str, Callable[..., None]]
) -> Callable[..., None]:
    shared = {name: inspect.signature(one).parameters for name, one in lists.items()}

    @wraps(command)
    def call(**values: Any) -> None:
        for name, parameters in shared.items():
            chosen = {key: values.pop(key) for key in parameters}
            values[name] = {k: v for k, v in chosen.items() if v is not None and v is not False}
        command(**values)

    own = [p for p in inspect.signature(command).parameters.values() if p.name not in shared]
    added = [parameter for parameters in shared.values() for parameter in parameters.values()]
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in [*own, *added]]
    )
    return call


def check(options: dict[str, Any]) -> None:
    """Check the options before the model is loaded."""
    if not options:
        return
    from outrider.runtime.options import decode_config

    try:
        decode_config(options, prefix="--")
    except ConfigError as error:
        raise ConfigError(error.key.replace("_", "-"), error.message) from error


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
