"""One picture of all methods: sources at the top, then their outputs, and the truth."""

from pathlib import Path
from typing import Any, NamedTuple

from digits_picture import GAP, LINE, TILE, say
from torch import Tensor

from outrider.show.palette import INK, load_pyplot

PICTURES = 38.0
"""x position of the first picture."""
TOP, LEVELS = 9.0, 8


class Row(NamedTuple):
    """The output of one method for the test pictures."""

    name: str
    about: str
    large: Tensor
    """Levels of all test pictures, [B, 192]."""


def draw(small: Tensor, rows: list[Row], truth: Tensor, chosen_N: Tensor, path: Path) -> None:
    """Draw the chosen pictures to a PNG: sources, all rows, and the truth."""
    pyplot = load_pyplot("the picture of colours")
    right = PICTURES + len(chosen_N) * (TILE + GAP) - GAP
    bottom = (len(rows) + 1) * LINE + TILE
    size = ((right + 2) / 11, (bottom + TOP + 2) / 11)
    figure = pyplot.figure(figsize=size, facecolor="white")
    try:
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.text(0, -5, "Colour, channel by channel", fontsize=17, fontweight="bold", color=INK)
        say(axes, right, -4.2, "digits of the test set, the first of each; drawn once", ha="right")
        whole = [Row("Source", "4 x 4 pixels, all that is told", small)]
        whole += [*rows, Row("Truth", "8 x 8 pixels", truth)]
        for index, row in enumerate(whole):
            _draw_row(axes, row, chosen_N, index * LINE)
        axes.set(xlim=(-1, right + 1), ylim=(bottom + 1, -TOP - 1), aspect="equal")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, pil_kwargs={"optimize": True})
    finally:
        pyplot.close(figure)


def _draw_row(axes: Any, row: Row, chosen_N: Tensor, y: float) -> None:
    lines = row.about.split("\n")
    middle = y + TILE / 2 - 1.4 * len(lines)
    axes.text(0, middle, row.name, fontsize=11, fontweight="bold", color=INK, va="center")
    for index, line in enumerate(lines):
        say(axes, 0, middle + 2.8 * (index + 1), line)
    for column, levels in enumerate(row.large[chosen_N]):
        _tile(axes, PICTURES + column * (TILE + GAP), y, levels)


def _tile(axes: Any, x: float, y: float, levels: Tensor) -> None:
    """Draw a picture centred in its tile; pixels of small and large pictures have width 1."""
    side = round((len(levels) / 3) ** 0.5)
    edge = (TILE - side) / 2
    where = (x + edge, x + edge + side, y + edge + side, y + edge)
    picture = levels.view(side, side, 3) / (LEVELS - 1)
    axes.imshow(picture.tolist(), extent=where, interpolation="nearest")
