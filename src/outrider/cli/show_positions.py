"""`outrider show positions`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.console import new_console
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from outrider.torch.inspect.positions import PositionMap

_LONGEST = 4096


def show_positions(
    what: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|KIND",
            help="Model folder, or one of sinusoidal, coordinate, rotary, alibi.",
        ),
    ],
    length: Annotated[int, typer.Option(help="Positions.")] = 128,
    png: Annotated[Path | None, typer.Option(help="Draw a picture to this file.")] = None,
) -> None:
    """Show how positions affect attention scores, by distance.

    Added position codes are compared with each other; rotations and biases are shown by their
    effect on a score.
    """
    if not 2 <= length <= _LONGEST:
        raise ConfigError("--length", f"got {length}, expected 2 to {_LONGEST}")

    from outrider.files.hub import model_folder
    from outrider.torch.inspect.positions import calculated_positions, read_positions
    from outrider.torch.models import load_model

    if Path(what).is_dir() or "/" in what:
        maps = read_positions(load_model(model_folder(what)), length)
    else:
        maps = calculated_positions(what, length)
    print_positions(maps, new_console(highlight=False))
    if png is not None:
        from outrider.show.pictures.positions import draw_positions

        draw_positions(maps, png, title=Path(what).name)
        typer.echo(f"wrote {png}", err=True)


def print_positions(maps: "Sequence[PositionMap]", console: "Console") -> None:
    """Print the effect of distances of 0, 1, 2, 4 … tokens, a table for each part of the model."""
    from rich.table import Table

    for part in maps:
        values_HT = part.by_distance_HT
        length = values_HT.shape[1]
        at = [0, *(1 << power for power in range(length.bit_length()) if 1 << power < length)]
        title = f"{part.part}, {part.kind}: {part.meaning}"
        table = Table("tokens back", *map(str, at), title=title)
        for head, line in enumerate(values_HT[:, at].tolist(), start=1):
            name = f"head {head}" if len(values_HT) > 1 else "all heads"
            table.add_row(name, *(f"{round(value, 3) + 0.0:.3g}" for value in line))
        console.print(table)
