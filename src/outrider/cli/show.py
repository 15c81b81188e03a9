"""`outrider show`: tandem decoding, attention, patterns, positions, effort and spans."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import new_console
from outrider.cli.decode_options import check, decodes
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console
    from rich.text import Text

    from outrider.show.tandem_trace import Kind, Span, Trace
    from outrider.torch.inspect.attention_maps import AttentionMaps
    from outrider.torch.inspect.pattern import HeadPattern, Pattern
    from outrider.torch.inspect.positions import PositionMap

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


@decodes("gamma", "draft_tokens", "max_new_tokens")
def show_tandem(
    options: dict[str, Any],
    text: Annotated[str, typer.Argument(help="Text to translate, or prompt to continue.")],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model folder; by default the toy demo/en-de."),
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Draw a picture to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file.")] = None,
) -> None:
    """Decode one text in tandem and show every round: accepted, rejected, corrected, bonus."""
    options["mode"] = "tandem"
    check(options)

    from outrider.runtime import load
    from outrider.show.page import write_page
    from outrider.show.tandem import draw_tandem
    from outrider.show.tandem_trace import trace_text

    trace = trace_text(load(_model(model)), text, options)
    print_tandem(trace, new_console(highlight=False))
    _write(png, draw_tandem, trace)
    _write(html, write_page, trace)


def _write(path: Path | None, write: Callable[[Any, Path], None], value: object) -> None:
    """Write a picture or a page, if a file is named."""
    if path is not None:
        write(value, path)
        typer.echo(f"wrote {path}", err=True)


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
    shown, and its alignment of the words. A language model, masked or not, only reads the text.
    """
    from outrider.show.attention import draw_head_plane, draw_maps
    from outrider.show.page import write_attention_page

    maps = _read(model, text)
    print_maps(maps, new_console(highlight=False))
    _write(png, draw_maps, maps)
    _write(html, write_attention_page, maps)
    _write(plane, draw_head_plane, maps)


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
    from outrider.show.effort import draw_effort
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
    _write(png, draw_effort, parts)


def show_spans(model: Model, png: Picture = None) -> None:
    """Show the learned span of each head of a model with adaptive spans."""
    from rich.table import Table

    from outrider.files.hub import model_folder
    from outrider.show.effort import draw_spans
    from outrider.torch.inspect.effort import read_spans
    from outrider.torch.models import load_model

    spans = read_spans(load_model(model_folder(model)))
    heads = (f"head {head + 1}" for head in range(spans.span_LH.shape[1]))
    title = f"tokens back that are seen whole, of {spans.longest}; the next {spans.ramp} fade"
    table = Table("layer", *heads, "mean", title=title)
    for name, row in zip(spans.names, spans.span_LH.tolist(), strict=True):
        table.add_row(name, *(f"{span:.0f}" for span in row), f"{sum(row) / len(row):.0f}")
    new_console(highlight=False).print(table)
    _write(png, draw_spans, spans)


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

    from outrider.show.pattern import draw_pattern
    from outrider.torch.inspect.pattern import find_pattern

    pattern = find_pattern(kind, chosen, causal=False if encoder else None, length=length)
    print_pattern(pattern, new_console(highlight=False))
    _write(png, draw_pattern, pattern)


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
    from outrider.show.pattern import pooled

    cells = [[share > 0 for share in row] for row in pooled(seen_TT, _CELLS).tolist()]
    if len(cells) % 2:
        cells.append([False] * len(cells[0]))
    pairs = zip(cells[::2], cells[1::2], strict=True)
    return ["".join(_HALVES[cell] for cell in zip(*pair, strict=True)) for pair in pairs]


def _figures(heads: "HeadPattern") -> str:
    if heads.computed is None:
        return f"{heads.seen:.1%} of the pairs are seen"
    return f"{heads.seen:.1%} of the pairs are seen, {heads.computed:.1%} computed"


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
    from outrider.show.positions import draw_positions
    from outrider.torch.inspect.positions import calculated_positions, read_positions
    from outrider.torch.models import load_model

    if Path(what).is_dir() or "/" in what:
        maps = read_positions(load_model(model_folder(what)), length)
    else:
        maps = calculated_positions(what, length)
    print_positions(maps, new_console(highlight=False))
    _write(png, partial(draw_positions, title=Path(what).name), maps)


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
