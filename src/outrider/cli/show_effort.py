"""`outrider show effort` and `outrider show spans`: what a model spends, and how far it looks."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.console import new_console

__all__ = ["show_effort", "show_spans"]

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Model folder, or id of a model.")]
Picture = Annotated[Path | None, typer.Option(help="Sample it here as a picture.")]


def show_effort(
    model: Model,
    text: Annotated[str, typer.Argument(help="One sentence to translate, or a text to read.")],
    png: Picture = None,
) -> None:
    """Show how many steps each token takes until it halts, or in how many layers it takes part.

    For models with halting (the Universal Transformer) or skip (FAT), which compute more for some
    tokens than for others.
    """
    from rich.table import Table
    from rich.text import Text

    from outrider.runtime import load
    from outrider.torch.inspect.effort import read_effort

    parts, console = read_effort(load(model, backend="torch"), text), new_console(highlight=False)
    for one in parts:
        table = Table("token", one.unit, "", title=f"{one.part}: of {one.most}")
        for label, taken in zip(one.labels, one.taken_T.tolist(), strict=True):
            table.add_row(Text(label), f"{taken:g}", "█" * round(taken))
        console.print(table)
        least = float((one.taken_T < one.most).float().mean())
        mean = float(one.taken_T.mean())
        console.print(f"mean {mean:.2f}; {least:.0%} of the tokens take fewer than {one.most}")
    if png is not None:
        from outrider.show.pictures.effort import draw_effort

        draw_effort(parts, png)
        typer.echo(f"wrote {png}", err=True)


def show_spans(model: Model, png: Picture = None) -> None:
    """Show how far each head of a model with adaptive spans has learnt to look."""
    from rich.table import Table

    from outrider.files.hub import model_folder
    from outrider.torch.inspect.effort import read_spans
    from outrider.torch.models import load_model

    spans = read_spans(load_model(model_folder(model)))
    heads = (f"head {head + 1}" for head in range(spans.span_LH.shape[1]))
    title = f"tokens back that are seen whole, of {spans.longest}; the next {spans.ramp} fade"
    table = Table("layer", *heads, "mean", title=title)
    for name, row in zip(spans.names, spans.span_LH.tolist(), strict=True):
        table.add_row(name, *(f"{span:.0f}" for span in row), f"{sum(row) / len(row):.0f}")
    new_console(highlight=False).print(table)
    if png is not None:
        from outrider.show.pictures.effort import draw_spans

        draw_spans(spans, png)
        typer.echo(f"wrote {png}", err=True)
