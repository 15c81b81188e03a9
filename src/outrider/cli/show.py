"""`outrider show tandem`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import new_console
from outrider.cli.decode_options import check
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from outrider.show.tandem_trace import Kind, Span, Trace

_STYLES: "dict[Kind, str]" = {
    "accepted": "green",
    "refused": "red strike",
    "dropped": "bright_black strike",
    "correction": "bold yellow",
    "bonus": "bold blue",
    "plain": "default",
}
_MARKS: "dict[Kind, tuple[str, str]]" = {
    "refused": ("[-", "-]"),
    "dropped": ("[-", "-]"),
    "correction": ("{+", "+}"),
    "bonus": ("(+", "+)"),
}
"""Marks for output without colours."""
_BAR = 24
_DEMO = Path("demo/en-de")


def show_tandem(
    text: Annotated[str, typer.Argument(help="Text to translate, or prompt to continue.")],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model folder; by default the toy demo/en-de."),
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Draw a picture to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file.")] = None,
    gamma: Annotated[float, typer.Option(help="Trust in the drafter; 0 is exact.")] = 0.0,
    draft_tokens: Annotated[
        int | None, typer.Option(help="Tokens drafted at once; by default 8.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Most new tokens.")] = None,
) -> None:
    """Decode one text in tandem and show every round: accepted, rejected, corrected, bonus."""
    options: dict[str, Any] = {"mode": "tandem", "gamma": gamma, "draft_tokens": draft_tokens}
    if max_new_tokens is not None:
        options["max_new_tokens"] = max_new_tokens
    check(options)

    from outrider.runtime import load
    from outrider.show.tandem_trace import trace_text

    trace = trace_text(load(_model(model)), text, options)
    print_tandem(trace, new_console(highlight=False))
    if png is not None:
        from outrider.show.pictures.tandem import draw_tandem

        draw_tandem(trace, png)
        typer.echo(f"wrote {png}", err=True)
    if html is not None:
        from outrider.show.page import write_page

        write_page(trace, html)
        typer.echo(f"wrote {html}", err=True)


def _model(given: str | None) -> str:
    """Return the given model, or the demo."""
    if given is None and not _DEMO.is_dir():
        raise ConfigError("--model", f"give a model folder; there is no {_DEMO} here")
    return given or str(_DEMO)


def print_tandem(trace: "Trace", console: "Console") -> None:
    """Print the rounds of one text, a line each; without colours, with marks."""
    from rich.text import Text

    from outrider.show.tandem_trace import KINDS

    marked = not console.is_terminal or console.no_color
    console.print(Text(trace.source, style="bright_black"))
    console.print()
    number = len(str(len(trace.rounds)))
    for row, spans in enumerate(trace.rounds, start=1):
        line = Text(f"{row:>{number}}  ", style="bright_black")
        for place, span in enumerate(spans):
            line.append_text(_token(span, marked, first=place == 0))
        console.print(line)
    console.print()
    console.print(Text(trace.text, style="bold"))
    console.print()
    legend = Text("  ").join(_legend(kind, KINDS[kind], marked) for kind in trace.kinds)
    console.print(legend)
    console.print(trace.summary)
    for place, share in enumerate(trace.statistics.acceptance_by_position, start=1):
        bar = "█" * round(share * _BAR)
        line = Text(f"{place:>{number}}  ", style="bright_black")
        line.append(bar, style="green").append("░" * (_BAR - len(bar)), style="bright_black")
        console.print(line.append(f" {share:.0%}"))


def _token(span: "Span", marked: bool, *, first: bool) -> "Text":
    """Format accepted tokens as in the text, all others as separate labels."""
    from rich.text import Text

    if span.kind in ("accepted", "plain") and not span.ends:
        text = span.text.replace("\n", "↵")
        return Text(text.lstrip() if first else text, style=_STYLES[span.kind])
    opening, closing = _MARKS.get(span.kind, ("", "")) if marked else ("", "")
    label = "■" if span.ends else span.label
    gap = Text("" if first else " ")
    return gap.append(f"{opening}{label}{closing}", style=_STYLES[span.kind])


def _legend(kind: "Kind", name: str, marked: bool) -> "Text":
    from rich.text import Text

    opening, closing = _MARKS.get(kind, ("", "")) if marked else ("", "")
    return Text(f"{opening}{name}{closing}", style=_STYLES[kind])
