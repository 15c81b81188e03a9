"""Positions as a picture: the codes that are added, or the biases, and what distance comes to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.show.palette import (
    INDIGO,
    INK,
    ORANGE,
    QUIET,
    SERIES,
    load_pyplot,
    save_figure,
    style_axes,
)
from outrider.torch.inspect.positions import PositionMap

__all__ = ["draw_positions"]

PANEL = 3.1
"""Inches."""


def draw_positions(maps: Sequence[PositionMap], path: Path, *, title: str) -> None:
    """Draw every part of a model in a line of two panels."""
    pyplot = load_pyplot("the picture of positions")
    size = (2.4 * PANEL + 1.6, len(maps) * (PANEL + 0.4) + 0.5)
    figure = pyplot.figure(figsize=size, layout="constrained", facecolor="white")
    try:
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
        for axes, one in zip(figure.subplots(len(maps), 2, squeeze=False), maps, strict=True):
            _draw_table(pyplot, figure, axes[0], one)
            _draw_distance(axes[1], one)
        figure.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold", color=INK)
        save_figure(figure, path, dpi=110, pil_kwargs={"optimize": True})
    finally:
        pyplot.close(figure)


def _draw_table(pyplot: Any, figure: Any, axes: Any, one: PositionMap) -> None:
    """Colour what is added at each position, or what each head is told about each distance."""
    codes = one.codes_TD is not None
    table = one.codes_TD if one.codes_TD is not None else one.by_distance_HT
    colours = pyplot.matplotlib.colors.LinearSegmentedColormap.from_list(
        "positions", [INDIGO, "#ffffff", ORANGE]
    )
    most = float(table.abs().max()) or 1.0
    shown = axes.imshow(table.numpy(), cmap=colours, vmin=-most, vmax=most, aspect="auto")
    axes.set_title(f"{one.part}: {one.kind}", loc="left", fontsize=10, color=INK)
    axes.set_xlabel("dimension" if codes else "tokens back", fontsize=9, color=QUIET)
    axes.set_ylabel("position" if codes else "head", fontsize=9, color=QUIET)
    axes.tick_params(labelsize=8, colors=QUIET)
    if not codes:
        heads = len(table)
        axes.set_yticks(
            range(heads), [str(head + 1) for head in range(heads)] if heads > 1 else [""]
        )
    bar = figure.colorbar(shown, ax=axes, fraction=0.04, pad=0.02)
    bar.ax.tick_params(labelsize=8, colors=QUIET)
    bar.outline.set_visible(False)


def _draw_distance(axes: Any, one: PositionMap) -> None:
    style_axes(axes)
    for head, line in enumerate(one.by_distance_HT.tolist()):
        axes.plot(line, color=SERIES[head % len(SERIES)], linewidth=1.4)
    axes.set_title(one.meaning, loc="left", fontsize=9, color=INK)
    axes.set_xlabel("tokens back", fontsize=9, color=QUIET)
    axes.margins(x=0.01)
