"""Positions: added codes or biases, and their effect by distance."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.show.palette import (
    INDIGO,
    INK,
    ORANGE,
    QUIET,
    SERIES,
    new_figure,
    save_figure,
    style_axes,
)
from outrider.torch.inspect.positions import PositionMap

PANEL = 3.1
"""Inches."""


def draw_positions(maps: Sequence[PositionMap], path: Path, *, title: str) -> None:
    """Draw every part of a model in a line of two panels."""
    size = (2.4 * PANEL + 1.6, len(maps) * (PANEL + 0.4) + 0.5)
    figure = new_figure(
        "the picture of positions", figsize=size, layout="constrained", facecolor="white"
    )
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    for axes, part in zip(figure.subplots(len(maps), 2, squeeze=False), maps, strict=True):
        _draw_table(figure, axes[0], part)
        _draw_distance(axes[1], part)
    figure.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold", color=INK)
    save_figure(figure, path, dpi=110, pil_kwargs={"optimize": True})


def _draw_table(figure: Any, axes: Any, part: PositionMap) -> None:
    """Draw the codes by position, or the values of each head by distance."""
    has_codes = part.codes_TD is not None
    table = part.codes_TD if part.codes_TD is not None else part.by_distance_HT
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("positions", [INDIGO, "#ffffff", ORANGE])
    most = float(table.abs().max()) or 1.0
    shown = axes.imshow(table.numpy(), cmap=colours, vmin=-most, vmax=most, aspect="auto")
    axes.set_title(f"{part.part}: {part.kind}", loc="left", fontsize=10, color=INK)
    axes.set_xlabel("dimension" if has_codes else "tokens back", fontsize=9, color=QUIET)
    axes.set_ylabel("position" if has_codes else "head", fontsize=9, color=QUIET)
    axes.tick_params(labelsize=8, colors=QUIET)
    if not has_codes:
        heads = len(table)
        axes.set_yticks(
            range(heads), [str(head + 1) for head in range(heads)] if heads > 1 else [""]
        )
    bar = figure.colorbar(shown, ax=axes, fraction=0.04, pad=0.02)
    bar.ax.tick_params(labelsize=8, colors=QUIET)
    bar.outline.set_visible(False)


def _draw_distance(axes: Any, part: PositionMap) -> None:
    style_axes(axes)
    for head, line in enumerate(part.by_distance_HT.tolist()):
        axes.plot(line, color=SERIES[head % len(SERIES)], linewidth=1.4)
    axes.set_title(part.meaning, loc="left", fontsize=9, color=INK)
    axes.set_xlabel("tokens back", fontsize=9, color=QUIET)
    axes.margins(x=0.01)
