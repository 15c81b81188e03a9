"""`outrider shrink`: a smaller model of a larger one, to be trained again."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.console import new_console
from outrider.errors import ConfigError

__all__ = ["shrink"]


def shrink(
    model: Annotated[str, typer.Argument(help="Model folder, or id of a Hub model.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")],
    encoder: Annotated[
        str | None, typer.Option(help="Layers of the encoder that stay, as 0,2,4; by default all.")
    ] = None,
    decoder: Annotated[
        str | None, typer.Option(help="Layers of the decoder that stay, as 0,5; by default all.")
    ] = None,
    encoder_layers: Annotated[
        int | None, typer.Option(min=1, help="How many stay, if not which: those missed least.")
    ] = None,
    decoder_layers: Annotated[
        int | None, typer.Option(min=1, help="Likewise, of the decoder.")
    ] = None,
    feedforward: Annotated[
        int | None, typer.Option(min=1, help="Inner units of each feed-forward that stay.")
    ] = None,
    words: Annotated[
        int | None, typer.Option(min=1, help="Words of each side that stay; by default all.")
    ] = None,
    like: Annotated[
        str | None, typer.Option(help="Model whose words stay; in the place of --words.")
    ] = None,
    int4: Annotated[
        str | None,
        typer.Option(help="Round to 4 bits: embeddings, feedforward, or both with a comma."),
    ] = None,
    positions: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of a text; by default as before.")
    ] = None,
    reverse: Annotated[
        bool,
        typer.Option(
            "--reverse", help="Read what it wrote, write what it read: a start, not a translator."
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="Prepared pairs that say which layers, units and words are needed."),
    ] = None,
) -> None:
    """Leave out layers, units, words of a model that translates; train the rest with model.start.

    Nothing is learnt here. Letters stay, so that every text can still be written.
    """
    layers: dict[str, int | list[int]] = {}
    for side, named, count in (
        ("encoder", encoder, encoder_layers),
        ("decoder", decoder, decoder_layers),
    ):
        if named is not None and count is not None:
            raise ConfigError(f"--{side}", f"says which, --{side}-layers how many; give one")
        if named is not None:
            layers[side] = _numbers(f"--{side}", named)
        elif count is not None:
            layers[side] = count
    if not layers and not any((feedforward, words, like, int4, positions, reverse)):
        raise ConfigError("--decoder", "nothing is to be left out; give --decoder 0,5 or --words")

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
