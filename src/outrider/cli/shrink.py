"""`outrider shrink`."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.console import new_console
from outrider.errors import ConfigError


def shrink(
    model: Annotated[str, typer.Argument(help="Model folder, or id of a Hub model.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")],
    encoder: Annotated[
        str | None, typer.Option(help="Encoder layers to keep, as 0,2,4; by default all.")
    ] = None,
    decoder: Annotated[
        str | None, typer.Option(help="Decoder layers to keep, as 0,5; by default all.")
    ] = None,
    encoder_layers: Annotated[
        int | None, typer.Option(min=1, help="Number of encoder layers to keep, the best set.")
    ] = None,
    decoder_layers: Annotated[
        int | None, typer.Option(min=1, help="Number of decoder layers to keep.")
    ] = None,
    feedforward: Annotated[
        int | None, typer.Option(min=1, help="Inner units of each feed-forward to keep.")
    ] = None,
    words: Annotated[
        int | None, typer.Option(min=1, help="Tokens of each side to keep; by default all.")
    ] = None,
    like: Annotated[
        str | None, typer.Option(help="Model whose vocabulary to keep, instead of --words.")
    ] = None,
    int4: Annotated[
        str | None,
        typer.Option(help="Round to 4 bits: embeddings, feedforward, or both with a comma."),
    ] = None,
    positions: Annotated[
        int | None, typer.Option(min=1, help="Number of positions; by default unchanged.")
    ] = None,
    reverse: Annotated[
        bool,
        typer.Option(
            "--reverse", help="Swap source and target, to initialise the opposite direction."
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="Prepared pairs that decide which layers, units and tokens to keep."),
    ] = None,
) -> None:
    """Remove layers, units or tokens of a translation model; train the result with model.start.

    Nothing is trained here. Single characters are kept, so that every text can be written.
    """
    layers: dict[str, int | list[int]] = {}
    for side, named, count in (
        ("encoder", encoder, encoder_layers),
        ("decoder", decoder, decoder_layers),
    ):
        if named is not None and count is not None:
            raise ConfigError(f"--{side}", f"cannot be combined with --{side}-layers")
        if named is not None:
            layers[side] = _numbers(f"--{side}", named)
        elif count is not None:
            layers[side] = count
    if not layers and not any((feedforward, words, like, int4, positions, reverse)):
        raise ConfigError("--decoder", "nothing to remove; give --decoder 0,5 or --words")

    from outrider.torch.compress.student import shrink as shrink_model

    written = shrink_model(
        model,
        out,
        layers=layers,
        feedforward=feedforward,
        words=words,
        like=like,
        int4=int4.split(",") if int4 else (),
        positions=positions,
        reverse=reverse,
        data=data,
        console=new_console(stderr=True),
    )
    typer.echo(str(written))


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(option, f"got {text!r}, expected layers, as 0,5") from None
