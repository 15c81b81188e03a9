"""`outrider show attention`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.console import new_console

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.torch.inspect.attention_maps import AttentionMaps


def show_attention(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model folder, or id of a model.")],
    text: Annotated[str, typer.Argument(help="One sentence to translate, or a text to read.")],
    png: Annotated[Path | None, typer.Option(help="Draw all heads to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an interactive page here.")] = None,
    plane: Annotated[
        Path | None, typer.Option(help="Draw all heads as points to this file, similar ones near.")
    ] = None,
) -> None:
    """Show the attention of every head, and how similar the heads of a layer are.

    An encoder-decoder translates the text greedily; its self-attention and cross-attention are
    shown. A language model, masked or not, only reads the text.
    """
    maps = _read(model, text)
    print_maps(maps, new_console(highlight=False))
    if png is not None:
        from outrider.show.pictures.attention import draw_maps

        draw_maps(maps, png)
        typer.echo(f"wrote {png}", err=True)
    if html is not None:
        from outrider.show.attention_page import write_attention_page

        write_attention_page(maps, html)
        typer.echo(f"wrote {html}", err=True)
    if plane is not None:
        from outrider.show.pictures.attention import draw_head_plane

        draw_head_plane(maps, plane)
        typer.echo(f"wrote {plane}", err=True)


def _read(model: str, text: str) -> "AttentionMaps":
    from outrider.files.hub import model_folder
    from outrider.runtime import load
    from outrider.text.tokenizer import load_tokenizer
    from outrider.torch.inspect.attention_maps import read_maps, read_masked_maps
    from outrider.torch.models import load_masked_lm

    folder = model_folder(model)
    masked = load_masked_lm(folder)
    if masked is not None:
        return read_masked_maps(masked, load_tokenizer(folder), text)
    return read_maps(load(model, backend="torch"), text)


def print_maps(maps: "AttentionMaps", console: "Console") -> None:
    """Print a description of each head, a table for each part of the model."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(maps.text, style="bright_black"))
    if maps.output is not None:
        console.print(Text(maps.output, style="bold"))
    for part in maps.parts:
        console.print()
        heads = part.weights_LHTS.shape[1]
        names = (f"head {head + 1}" for head in range(heads))
        table = Table("layer", *names, "alike", title=f"{part.name}: {part.title}")
        for number, (descriptions, similarity_HH) in enumerate(
            zip(part.descriptions, part.similarity_LHH, strict=True), start=1
        ):
            others = heads * (heads - 1)
            alike = (float(similarity_HH.sum()) - heads) / others if others else 1.0
            table.add_row(str(number), *descriptions, f"{alike:.2f}")
        console.print(table)
