"""`outrider shrink`: a smaller model of a larger one, to be trained again."""

from pathlib import Path
from typing import Annotated

import typer

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
    words: Annotated[
        int | None, typer.Option(min=1, help="Words of each side that stay; by default all.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Prepared folder that says which words are common.")
    ] = None,
) -> None:
    """Leave out layers and words of a model that translates; train the rest with model.start.

    Nothing is learnt here. Letters stay, so that every text can still be written.
    """
    layers = {
        side: _numbers(f"--{side}", text)
        for side, text in (("encoder", encoder), ("decoder", decoder))
        if text is not None
    }
    if not layers and words is None:
        raise ConfigError("--decoder", "nothing is to be left out; give --decoder 0,5 or --words")

    from outrider.student import shrink as shrink_model

    typer.echo(str(shrink_model(model, out, layers=layers, words=words, data=data)))


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(option, f"got {text!r}, expected layers, as 0,5") from None
