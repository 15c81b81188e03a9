"""`outrider show effort` and `outrider show spans`."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.console import new_console

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Model folder, or id of a model.")]
Picture = Annotated[Path | None, typer.Option(help="Draw a picture to this file.")]


def show_effort(
    model: Model,
    text: Annotated[str, typer.Argument(help="One sentence to translate, or a text to read.")],
    png: Picture = None,
) -> None:
    """Show the steps of each token until it halts, or the number of layers that process it.

    For models with halting (the Universal Transformer) or skip (FAT), whose tokens take different
    amounts of computation.
    """
    from rich.table import Table
    from rich.text import Text

    from outrider.runtime import load
    from outrider.torch.inspect.effort import read_effort

    parts, console = read_effort(load(model, backend="torch"), text), new_console(highlight=False)
    for part in parts:
        table = Table("token", part.unit, "", title=f"{part.part}: of {part.most}")
        for label, taken in zip(part.labels, part.taken_T.tolist(), strict=True):
            table.add_row(Text(label), f"{taken:g}", "█" * round(taken))
        console.print(table)
        share = float((part.taken_T < part.most).float().mean())
        mean = float(part.taken_T.mean())
        console.print(f"mean {mean:.2f}; {share:.0%} of the tokens take fewer than {part.most}")
    if png is not None:
        from outrider.show.pictures.effort import draw_effort

        draw_effort(parts, png)
        typer.echo(f"wrote {png}", err=True)


def show_spans(model: Model, png: Picture = None) -> None:
    """Show the learned span of each head of a model with adaptive spans."""
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
