"""`outrider lab bench attention`: time, memory and cache of every attention by length."""

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.console import check_output, new_console
from outrider.options import MOST_THREADS


def bench_attention(
    json: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    kinds: Annotated[
        str | None, typer.Option(help="Attentions, comma-separated; by default all decoder kinds.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw time and memory here.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few lengths: a minute or two for two kinds.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, max=MOST_THREADS, help="CPU threads.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep other kinds of the earlier --json FILE.")
    ] = False,
) -> None:
    """Measure the scaling of attentions with the length, from 256 to 64k tokens.

    Each is compared with full causal attention. Every point, a kind at a length, runs in its own
    process; points that would take too long are left out.
    """

    from outrider.runtime.provenance import write_result
    from outrider_lab.bench.attention.scaling import (
        Sweep,
        check_kinds,
        keep_others,
        measure_scaling,
    )

    check_output("--json", json)
    check_output("--plot", plot, json)
    before = _read(json) if keep else None
    chosen = check_kinds([name.strip() for name in (kinds or "").split(",") if name.strip()])
    console = new_console(stderr=True)
    result = measure_scaling(
        chosen,
        Sweep.quick() if quick else Sweep(),
        threads=threads,
        report=lambda line: console.print(line, highlight=False),
    )
    if before is not None:
        result = keep_others(before, result)
    _print(result)
    if json is not None:
        write_result(json, result)
        typer.echo(f"wrote {json}", err=True)
    if plot is not None:
        from outrider_lab.bench.attention.picture import draw_scaling

        draw_scaling(result, plot)
        typer.echo(f"wrote {plot}", err=True)


def _read(path: Path | None) -> dict[str, Any]:
    from json import loads

    from outrider.errors import ConfigError

    try:
        result: dict[str, Any] = loads(path.read_text(encoding="utf-8")) if path else {}
    except (OSError, ValueError) as error:
        raise ConfigError("--keep", f"{path} cannot be read ({error}); leave it out") from error
    if result.get("task") != "attention":
        raise ConfigError("--keep", "needs --json FILE with an earlier result of this command")
    return result


def _print(result: dict[str, Any]) -> None:
    from rich.table import Table

    heads = ("kind", "slope", "speedup 16k", "memory 16k", "cache 64k, MiB", "faster from")
    table = Table(*heads, title=f"against full {result['peer']} attention")
    for kind, figures in result["kinds"].items():
        cache = figures["cache_bytes_64k"]
        table.add_row(
            kind,
            _figure(figures["slope"]),
            _figure(figures["speedup_16k"], "x"),
            _figure(figures["memory_ratio_16k"], "x"),
            "-" if cache is None else f"{cache / 2**20:.2f}",
            "-" if figures["faster_from"] is None else f"{figures['faster_from']:,}",
        )
    new_console(highlight=False).print(table)


def _figure(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"
