"""An attention pattern: query rows, key columns; the pairs seen, and the pairs computed."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outrider.show.palette import EMPTY, GREEN, HEAT, INK, QUIET, new_figure, rgb, save_figure

if TYPE_CHECKING:
    from outrider.torch.inspect.pattern import HeadPattern, Pattern

Pairs = NDArray[np.bool_]

SEEN, OWN, WASTE = GREEN, HEAT[3], "#f2b591"
CELLS = 128
"""Maximum cells per side; longer texts are pooled."""
FAINTEST = 0.3
"""Opacity of a cell of which hardly anything is seen."""
LINE = 115
"""Characters of the line below the title."""
PANEL = 3.5
"""Inches."""


def draw_pattern(pattern: "Pattern", path: Path) -> None:
    """Draw a pattern: a line of two panels for every group of heads that share one."""
    rows = len(pattern.heads)
    size = (2 * PANEL + 0.5, rows * (PANEL + 0.3) + 0.9 + (0.25 if pattern.reason else 0))
    figure = new_figure(
        "the picture of a pattern", figsize=size, layout="constrained", facecolor="white"
    )
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    grid = figure.subplots(rows, 2, squeeze=False)
    for axes, heads in zip(grid, pattern.heads, strict=True):
        _draw_heads(axes, heads, pattern)
    title = f"{pattern.kind}\n" + ("\n" if pattern.reason else "")
    figure.suptitle(title, x=0.02, ha="left", fontsize=13, fontweight="bold", color=INK)
    line = "    ".join(filter(None, [pattern.place, pattern.settings]))
    line = line if len(line) <= LINE else f"{line[: LINE - 1]}…"
    figure.text(0.02, 1 - 0.45 / size[1], line, fontsize=9, color=QUIET)
    if pattern.reason:
        reason = f"Computed: {pattern.reason}."
        figure.text(0.02, 1 - 0.68 / size[1], reason, fontsize=9, color=INK)
    _draw_legend(figure)
    save_figure(figure, path, dpi=110, pil_kwargs={"optimize": True})


def pooled(pairs_TT: Pairs, cells: int) -> NDArray[np.float64]:
    """Return the shares of pairs in at most `cells` x `cells` cells of equal size."""
    size = -(-len(pairs_TT) // cells)
    edges = np.arange(0, len(pairs_TT), size)
    sums = np.add.reduceat(np.add.reduceat(pairs_TT.astype(np.float64), edges, 0), edges, 1)
    widths = np.diff([*edges, len(pairs_TT)])
    return sums / np.outer(widths, widths)


def _draw_heads(axes: Any, heads: "HeadPattern", pattern: "Pattern") -> None:
    several = len(pattern.heads) > 1
    name = f"{_heads(heads.heads)}: " if several else ""
    colours = _colours(heads.seen_TT, heads.seen_TT)
    _draw(axes[0], colours, f"{name}seen, {heads.seen:.1%} of the pairs", pattern.length)
    if heads.computed_TT is None:
        axes[1].set_axis_off()
        return
    colours = _colours(heads.seen_TT, heads.computed_TT)
    _draw(axes[1], colours, f"{name}computed, {heads.computed:.1%}", pattern.length)


def _heads(heads: tuple[int, ...]) -> str:
    return f"head {heads[0]}" if len(heads) == 1 else f"heads {', '.join(map(str, heads))}"


def _colours(seen_TT: Pairs, computed_TT: Pairs) -> Any:
    """Blend seen pairs, pairs computed but masked, and the diagonal over the background."""
    own_TT = np.eye(len(seen_TT), dtype=bool)
    layers = ((computed_TT & ~seen_TT, WASTE), (seen_TT, SEEN), (seen_TT & own_TT, OWN))
    size = pooled(own_TT, CELLS).shape
    picture = np.broadcast_to(rgb(EMPTY), (*size, 3))
    for pairs_TT, colour in layers:
        share = pooled(pairs_TT, CELLS)[..., None]
        shade = np.where(share > 0, FAINTEST + (1 - FAINTEST) * share, 0.0)
        picture = (1 - shade) * picture + shade * np.array(rgb(colour))
    return picture


def _draw(axes: Any, colours: Any, title: str, length: int) -> None:
    cells = len(colours)
    axes.imshow(colours, interpolation="nearest")
    if cells == length:  # a cell per token: separate them by thin lines
        edges = np.arange(cells - 1) + 0.5
        width = 0.5 if cells <= 64 else 0.25
        axes.hlines(edges, -0.5, cells - 0.5, color="white", linewidth=width)
        axes.vlines(edges, -0.5, cells - 0.5, color="white", linewidth=width)
    ticks = [0, length // 4, length // 2, 3 * length // 4, length - 1]
    places = [(tick + 0.5) * cells / length - 0.5 for tick in ticks]
    axes.set_xticks(places, ticks)
    axes.set_yticks(places, ticks)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(colors=QUIET, length=0, labelsize=7, pad=1)
    axes.set_xlabel("key j", color=QUIET, fontsize=8, loc="left", labelpad=2)
    axes.set_ylabel("query i", color=QUIET, fontsize=8, loc="top", labelpad=2)
    axes.spines[:].set_visible(False)
    axes.set_title(title, loc="left", fontsize=10, color=INK, pad=7)


def _draw_legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    entries = ((SEEN, "seen"), (OWN, "the token itself"), (WASTE, "computed, then masked"))
    figure.legend(
        handles=[Patch(facecolor=colour, label=label) for colour, label in entries],
        loc="outside lower left",
        ncols=3,
        frameon=False,
        fontsize=8.5,
        labelcolor=QUIET,
        handlelength=0.9,
        handleheight=0.9,
        columnspacing=1.6,
    )
