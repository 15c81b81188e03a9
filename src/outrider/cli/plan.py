"""`outrider plan`."""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import new_console
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.torch.plan.plan import Figure


def plan(
    config: Annotated[Path, typer.Argument(help="Run config (YAML).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides, e.g. train.batch_tokens=65536.")
    ] = None,
    tokens: Annotated[
        float | None, typer.Option(help="Training tokens, e.g. 3.2e10; by default the config's.")
    ] = None,
    devices: Annotated[int, typer.Option(help="Training devices, each with the model.")] = 1,
    device_memory: Annotated[
        float | None, typer.Option(help="Memory of a device in GB; by default this machine's.")
    ] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a sentence, e.g. 32.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Used without prepared data.")] = None,
    distill: Annotated[float | None, typer.Option(help="Sentences to translate.")] = None,
    serve: Annotated[float | None, typer.Option(help="Sentences per second to serve.")] = None,
    rows: Annotated[int, typer.Option(help="Sentences decoded together.")] = 32,
    busy: Annotated[float, typer.Option(help="Highest load of servers, a share.")] = 0.7,
    measure: Annotated[
        bool, typer.Option("--measure", help="Time a few steps of this model on this machine.")
    ] = False,
    flops: Annotated[float | None, typer.Option(help="Peak FLOP/s of a device, e.g. 1e14.")] = None,
    utilisation: Annotated[
        float | None, typer.Option(help="Share of --flops that training reaches (0.4).")
    ] = None,
    decode_utilisation: Annotated[
        float | None, typer.Option(help="Share of --flops that decoding reaches (0.05).")
    ] = None,
    price: Annotated[float | None, typer.Option(help="Price of a device per hour.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
) -> None:
    """Estimate a run: parameters, memory by part, FLOPs, time and cost.

    Every number has its source and assumptions. Times need a machine: this one (--measure), or a
    described one (--flops).
    """
    from outrider.config import load_config
    from outrider.run_config import RunConfig
    from outrider.torch.plan.plan import plan_run
    from outrider.torch.plan.subject import PlanOptions

    options = PlanOptions(
        tokens=tokens,
        devices=devices,
        device_memory=device_memory,
        length=length,
        vocab_size=vocab_size,
        distill=distill,
        serve=serve,
        rows=rows,
        busy=busy,
        price=price,
        measure=measure,
        given=_given(flops, utilisation, decode_utilisation),
    )
    run = load_config(RunConfig, config, overrides or [])
    figures = plan_run(run, options)
    _print(run.name, figures)
    if json is not None:
        _write(json, run.name, figures)


def _given(flops: float | None, utilisation: float | None, decoding: float | None) -> Any:
    from outrider.torch.plan.machine import GivenMachine

    shares = {"utilisation": utilisation, "decode_utilisation": decoding}
    given = {name: share for name, share in shares.items() if share is not None}
    for name, share in given.items():
        option = f"--{name.replace('_', '-')}"
        if flops is None:
            raise ConfigError(option, "has no effect without --flops; give that, or leave it out")
        if not 0 < share <= 1:
            raise ConfigError(option, f"got {share:g}, expected a share from 0 to 1")
    if flops is None:
        return None
    if not 0 < flops < float("inf"):
        raise ConfigError("--flops", f"got {flops:g}, expected more than 0, such as 1e14")
    return GivenMachine(flops, **given)


def _print(name: str, figures: "list[Figure]") -> None:
    from rich.table import Table

    from outrider.torch.plan.plan import show

    table = Table("", "", "", "", box=None, show_header=False, padding=(0, 2, 0, 0))
    table.title, table.title_justify = f"plan of {name}", "left"
    for column in table.columns[:3]:
        column.no_wrap = True
    table.columns[1].justify = "right"
    for section, group in groupby(figures, lambda figure: figure.key.partition(".")[0]):
        table.add_row(section)
        for figure in group:
            label = figure.key.removeprefix(f"{section}.")
            part = label.removeprefix("activations.")
            label = f"  {label}" if part == label else f"    {part}"
            table.add_row(label, show(figure), figure.how, figure.note)
    new_console(highlight=False).print(table)


def _write(path: Path, name: str, figures: "list[Figure]") -> None:
    from outrider.runtime.provenance import machine, versions, write_result

    values = {
        figure.key: {key: getattr(figure, key) for key in ("value", "unit", "how", "note")}
        for figure in figures
    }
    result = {"task": "plan", "name": name, "figures": values}
    write_result(path, {**result, "machine": machine(), "versions": versions()})
