"""`outrider serve`."""

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.decode_options import names_models, places
from outrider.errors import ConfigError

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@names_models
@places
def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Pairs such as de-en, folders, .argosmodel files or Hub ids; en-de=FOLDER.",
        ),
    ],
    place: dict[str, Any],
    lists: dict[str, Any],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 admits other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 5000,
    keys: Annotated[
        Path | None, typer.Option(help="Require an API key of this file; see outrider key.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin of web pages to allow (CORS), or *; may be repeated."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Bytes for the weights of all models, such as 2G.")
    ] = None,
    idle: Annotated[
        float | None, typer.Option(min=0.1, help="Unload a model after so many unused seconds.")
    ] = None,
    lazy: Annotated[
        bool, typer.Option("--lazy", help="Load each model on its first request.")
    ] = False,
    glossary: Annotated[
        list[str] | None,
        typer.Option(help="Terms of a pair, such as en-pt=terms.tsv; may be repeated."),
    ] = None,
    glossaries: Annotated[
        Path | None,
        typer.Option(help="File for the glossaries of DeepL clients; else beside --keys."),
    ] = None,
    no_guard: Annotated[
        bool,
        typer.Option("--no-guard", help="Keep translations with faults instead of trying again."),
    ] = False,
    rows: Annotated[int, typer.Option(min=1, max=4096, help="Rows decoded at once.")] = 64,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of these rows.")] = 16_384,
    queue_tokens: Annotated[
        int, typer.Option(min=1, help="Most waiting tokens; beyond, the answer is 503.")
    ] = 1 << 20,
    characters: Annotated[
        int, typer.Option(min=1, help="Most characters of one request.")
    ] = 100_000,
    deadline: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Time limit of a request in seconds.")
    ] = 60.0,
    ray: Annotated[
        bool, typer.Option("--ray", help="Use Ray Serve, on RAY_ADDRESS or this machine.")
    ] = False,
    replicas: Annotated[
        str, typer.Option(help="With --ray: number of processes, or a range such as 1-4.")
    ] = "1",
) -> None:
    """Serve models over HTTP with the APIs of LibreTranslate, DeepL, Google and OpenAI.

    Pairs such as de-en are models by name (see outrider models); missing ones are downloaded.
    By default only this machine can connect. On SIGTERM, requests in flight finish first.
    """
    from outrider.serving.limits import Limits
    from outrider.serving.run import Service, bind, run

    limits = Limits(
        rows=rows,
        batch_tokens=batch_tokens,
        queue_tokens=queue_tokens,
        characters=characters,
        seconds=deadline,
    )
    service = Service(
        models=tuple(_find(model, lists) for model in models),
        limits=limits,
        memory=None if memory is None else _bytes("--memory", memory),
        idle=idle,
        load_options=place,
        keys=keys,
        origins=tuple(allow_origin or ()),
        load=not lazy,
        guard=not no_guard,
        terms=tuple(_terms(one) for one in glossary or ()),
        glossaries=glossaries,
    )
    app = service.build()
    for spec in app.state.engine.registry.specs.values():
        if spec.unknown:
            message = "its languages are unknown; omit source and target in requests, or use en-de="
            typer.echo(f"outrider: {spec.name}: {message}{spec.folder}", err=True)
    least, most = _between("--replicas", replicas)
    if not ray and most > 1:
        raise ConfigError("--replicas", "has no effect without --ray; leave it out")
    with closing(bind(host, port)) as listening:
        address = listening.getsockname()
        if not ray:
            _say(address)
            run(app, listening, limits)
    if ray:
        from outrider.serving.run import run_replicas

        say = partial(_say, address)
        run_replicas(service, host=host, port=address[1], least=least, most=most, ready=say)


def _terms(text: str) -> tuple[str, str, Path]:
    """Parse `en-pt=FILE`."""
    pair, _, path = text.partition("=")
    source, _, target = pair.partition("-")
    if not (source and target and path):
        raise ConfigError(
            "--glossary", f"got {text[:50]!r}, expected a pair and a file: en-pt=FILE"
        )
    return source, target, Path(path)


def _find(model: str, lists: dict[str, Any]) -> str:
    """Return `de-en=FOLDER` for a pair, which is downloaded if it is missing."""
    if "=" in model or "/" in model:
        return model
    from outrider.catalog import Pair
    from outrider.cli.pull import find_by_name

    folder, pair = find_by_name(model, **lists), Pair.parse(model)
    if folder == model or pair is None:
        return model
    return f"{'-'.join(code.replace('-', '_') for code in pair)}={folder}"


def _say(address: tuple[Any, ...]) -> None:
    typer.echo(f"outrider: listening at http://{address[0]}:{address[1]}", err=True)


def _between(key: str, text: str) -> tuple[int, int]:
    """Parse `4` or `1-4`."""
    least, dash, most = text.partition("-")
    numbers = [least, most if dash else least]
    if not all(number.isdigit() and 0 < int(number[:9]) < 10_000 for number in numbers):
        raise ConfigError(key, f"got {text[:50]!r}, expected a number or a range, as 4 or 1-4")
    return int(numbers[0]), int(numbers[1])


def _bytes(key: str, text: str) -> int:
    """Parse `512M`."""
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdigit() or len(number) > 15 or unit not in UNITS or not int(number):
        raise ConfigError(key, f"got {text[:50]!r}, expected bytes such as 512M or 2G")
    return int(number) * UNITS[unit]
