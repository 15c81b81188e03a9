"""`outrider show pattern`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import new_console
from outrider.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from outrider.torch.inspect.pattern import HeadPattern, Pattern

_CELLS = 64
_HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
"""Two rows of the pattern in one line of the terminal."""


def show_pattern(
    kind: Annotated[str, typer.Argument(help="Name of an attention, such as sliding.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key=value]...", help="Its options.", show_default=False),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens; by default enough to show the pattern.")
    ] = None,
    encoder: Annotated[
        bool, typer.Option("--encoder", help="As in an encoder, with attention to both sides.")
    ] = False,
    png: Annotated[Path | None, typer.Option(help="Draw a picture to this file.")] = None,
) -> None:
    """Show the pattern of an attention: which keys a query sees, and which are computed.

    Rows are queries and columns are keys. The second panel of the picture shows the recorded
    inputs of the kernels.
    """
    chosen = dict(_option(word) for word in options or [])

    from outrider.torch.inspect.pattern import find_pattern

    pattern = find_pattern(kind, chosen, causal=False if encoder else None, length=length)
    print_pattern(pattern, new_console(highlight=False))
    if png is not None:
        from outrider.show.pictures.pattern import draw_pattern

        draw_pattern(pattern, png)
        typer.echo(f"wrote {png}", err=True)


def _option(word: str) -> tuple[str, Any]:
    from outrider import yaml12

    key, equals, text = word.partition("=")
    if not equals or not key:
        raise ConfigError(word, "an option is written key=value, for example window=8")
    try:
        return key, yaml12.parse(text)
    except ValueError:
        return key, text


def print_pattern(pattern: "Pattern", console: "Console") -> None:
    """Print the pattern as block characters, two rows of tokens a line."""
    from rich.text import Text

    console.print(Text("  ".join([pattern.kind, pattern.settings]).strip(), style="bold"))
    console.print(Text(pattern.place, style="bright_black"))
    for heads in pattern.heads:
        console.print()
        if len(pattern.heads) > 1:
            console.print(Text(f"heads {', '.join(map(str, heads.heads))}"))
        for line in _lines(heads.seen_TT):
            console.print(Text(line, style="green"), no_wrap=True, crop=True)
        console.print(_figures(heads))
    if pattern.reason:
        console.print(Text(pattern.reason, style="bright_black"))


def _lines(seen_TT: "NDArray[np.bool_]") -> list[str]:
    from outrider.show.pictures.pattern import pooled

    cells = [[share > 0 for share in row] for row in pooled(seen_TT, _CELLS).tolist()]
    if len(cells) % 2:
        cells.append([False] * len(cells[0]))
    pairs = zip(cells[::2], cells[1::2], strict=True)
    return ["".join(_HALVES[cell] for cell in zip(*pair, strict=True)) for pair in pairs]


def _figures(heads: "HeadPattern") -> str:
    if heads.computed is None:
        return f"{heads.seen:.1%} of the pairs are seen"
    return f"{heads.seen:.1%} of the pairs are seen, {heads.computed:.1%} computed"
