"""One picture of all models: visible pixels, sampled digits, and completed halves.

Grey pixels are handwritten, teal ones generated.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from outrider.show.palette import INK, QUIET, load_pyplot

MISSING, PAPER = "#b8bcc2", "#f4f2ee"
HAND = (PAPER, "#b8bcc2", "#6b7280", "#23272e")
MODEL = (PAPER, "#9fd0cb", "#2a9d8f", "#0a443e")
SEEN = (PAPER, "#f6c9a8", "#e9a06c", "#c8672c")
TILE, GAP, LINE = 8, 1.5, 11.5
"""Widths in pixels: an image, the gap between images, and the distance of rows."""
LOOK, ASKED, HALVES = 37.0, 52.0, 152.0
"""x positions of the three groups."""


class Row(NamedTuple):
    """Results of one model."""

    name: str
    sees: str
    bits: float
    """Bits per pixel."""
    look: Tensor
    """Share of the heads that attend to each pixel, [8, 8]."""
    asked: Tensor
    """An image of every digit, [10, 8, 8]."""
    completed: Tensor
    """Completed halves, [N, 8, 8]."""


def draw(rows: list[Row], hand: Tensor, digit_N: Tensor, path: Path) -> None:
    """Draw the rows to a PNG, between the images of `hand` for comparison.

    `digit_N` are the indices of one image per digit; the halves are those of the first images.
    """
    pyplot = load_pyplot("the picture of digits")
    halves = len(rows[0].completed)
    right = HALVES + halves * (TILE + GAP)
    bottom = (len(rows) + 1) * LINE + TILE
    size = (right / 17, (bottom + 18) / 17)
    figure = pyplot.figure(figsize=size, facecolor="white")
    try:
        axes = figure.add_axes((0.02, 0.02, 0.96, 0.96))
        axes.set_axis_off()
        _draw_heads(axes, right)
        _draw_hand(axes, hand, digit_N, halves)
        for index, row in enumerate(rows):
            _draw_row(axes, row, (index + 1) * LINE)
        _draw_truth(axes, hand[:halves], (len(rows) + 1) * LINE)
        axes.set(xlim=(0, right), ylim=(bottom + 1, -17), aspect="equal")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, pil_kwargs={"optimize": True})
    finally:
        pyplot.close(figure)


def _draw_heads(axes: Any, right: float) -> None:
    axes.text(0, -13.5, "Digits, pixel by pixel", fontsize=17, fontweight="bold", color=INK)
    say(
        axes,
        right - GAP,
        -13.5,
        "grey: by hand      teal: by the model, drawn once, none chosen",
        ha="right",
    )
    heads = (
        (LOOK, "a pixel\nsees"),
        (ASKED, "asked for a digit"),
        (HALVES, "told the upper half"),
    )
    for x, text in heads:
        axes.text(x, -6.2, text, fontsize=10.5, color=INK, va="center", linespacing=1.1)
    for digit in range(10):
        say(axes, ASKED + digit * (TILE + GAP) + TILE / 2, -2, str(digit), ha="center")


def _draw_hand(axes: Any, hand: Tensor, digit_N: Tensor, halves: int) -> None:
    axes.text(0, TILE / 2, "Handwritten", fontsize=11.5, color=INK, va="center")
    for digit, image in enumerate(hand[digit_N]):
        _tile(axes, ASKED + digit * (TILE + GAP), 0, image, HAND, top=16)
    for column, image in enumerate(hand[:halves]):
        x = HALVES + column * (TILE + GAP)
        _tile(axes, x, 0, image[: TILE // 2], HAND, top=16)
        _frame(axes, (x, TILE // 2), (TILE, TILE // 2), color=MISSING, linestyle=(0, (1, 2)))


def _draw_row(axes: Any, row: Row, y: float) -> None:
    axes.text(0, y + 1.8, row.name, fontsize=11.5, fontweight="bold", color=INK, va="center")
    axes.text(0, y + 4.7, f"{row.bits:.3f} bits per pixel", fontsize=10, color=INK, va="center")
    say(axes, 0, y + 7.2, row.sees)
    _tile(axes, LOOK, y, row.look, SEEN, top=1)
    _mark_query(axes, row.look, y)
    for digit, image in enumerate(row.asked):
        _tile(axes, ASKED + digit * (TILE + GAP), y, image, MODEL, top=16)
    for column, image in enumerate(row.completed):
        x = HALVES + column * (TILE + GAP)
        _tile(axes, x, y, image[: TILE // 2], HAND, top=16)
        _tile(axes, x, y + TILE // 2, image[TILE // 2 :], MODEL, top=16)


def _mark_query(axes: Any, look: Tensor, y: float) -> None:
    """Frame the query pixel: the one after the last visible pixel."""
    at = int(look.flatten().nonzero().max()) + 1
    _frame(axes, (LOOK + at % TILE, y + at // TILE), (1, 1), color=INK, linewidth=1.6)


def _draw_truth(axes: Any, hand: Tensor, y: float) -> None:
    say(axes, HALVES - 2, y + TILE / 2, "what the hand wrote", ha="right")
    for column, image in enumerate(hand):
        _tile(axes, HALVES + column * (TILE + GAP), y, image, HAND, top=16)


def _tile(axes: Any, x: float, y: float, image: Tensor, colours: tuple[str, ...], top: int) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    height, width = image.shape
    shade = LinearSegmentedColormap.from_list("shade", colours)
    where = (x, x + width, y + height, y)
    values = np.asarray(image.tolist(), dtype=float)
    axes.imshow(values, cmap=shade, vmin=0, vmax=top, extent=where, interpolation="nearest")


def _frame(axes: Any, at: tuple[float, float], size: tuple[int, int], **line: Any) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle(at, *size, fill=False, zorder=3, **line))


def say(axes: Any, x: float, y: float, text: str, ha: str = "left") -> None:
    """Write secondary text."""
    axes.text(x, y, text, fontsize=9, color=QUIET, ha=ha, va="center")
