"""Attention maps as pictures: a map per head, and the heads of a model as points of a plane."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.show.palette import (
    GRID,
    HEAT,
    INK,
    QUIET,
    SIMILARITY,
    TEAL,
    new_figure,
    save_figure,
    style_axes,
)
from outrider.torch.inspect.attention_maps import AttentionMaps, HeadPlane, Maps, head_plane

GAMMA = 0.6
"""Exponent of the colour scale, which makes small weights visible."""
SIDE, LABELS = 1.5, 0.85
"""Inches of a map, and of the labels beside it."""
GAP, UNDER = 0.12, 0.36
"""Inches between maps, and of the caption below."""
MOST_LABELS = 40
"""Longer texts are labelled every few tokens."""
LONGEST_LINE = 150
"""Characters of the text above the maps."""
ABREAST = 4
"""Heads per line."""


def draw_maps(maps: AttentionMaps, path: Path) -> None:
    """Draw the maps of all heads."""
    widths, heights = zip(*(_size(part) for part in maps.parts), strict=True)
    top = 0.8
    size = (max(widths), sum(heights) + top)
    figure = new_figure("the picture of the heads", figsize=size, layout=None, facecolor="white")
    _write_title(figure, maps)
    for part, high in zip(maps.parts, heights, strict=True):
        _draw_part(figure, part, top)
        top += high
    save_figure(figure, path, dpi=110, pil_kwargs={"optimize": True})


def _size(part: Maps) -> tuple[float, float]:
    """Return width and height of a part in inches."""
    layers, heads, *_ = part.weights_LHTS.shape
    wide = LABELS + 0.4 + min(heads, ABREAST) * (SIDE + GAP) + SIDE * 0.8 + 0.35
    return wide, 0.95 + LABELS + layers * -(-heads // ABREAST) * (SIDE + UNDER)


def _write_title(figure: Any, maps: AttentionMaps) -> None:
    lines = [maps.text] if maps.output is None else [maps.text, maps.output]
    for row, line in enumerate(lines):
        last = row == len(lines) - 1
        shown = " ".join(line.split())
        shown = shown if len(shown) <= LONGEST_LINE else f"{shown[: LONGEST_LINE - 1]}…"
        weight, colour = ("bold", INK) if last else ("normal", QUIET)
        _write(figure, 0.25, 0.28 + 0.3 * row, shown, size=12, weight=weight, color=colour)


def _draw_part(figure: Any, part: Maps, top: float) -> None:
    layers, heads, *_ = part.weights_LHTS.shape
    _write(figure, 0.25, top + 0.22, part.name, size=13, weight="bold", color=INK)
    _write(figure, 0.25, top + 0.47, part.title, size=10, color=QUIET)
    x0, y0 = LABELS + 0.4, top + 0.65 + LABELS
    abreast = min(heads, ABREAST)
    similarity_LHH = part.similarity_LHH
    for layer in range(layers):
        y = y0 + layer * -(-heads // abreast) * (SIDE + UNDER)
        for head in range(heads):
            row, column = divmod(head, abreast)
            corner = (x0 + column * (SIDE + GAP), y + row * (SIDE + UNDER))
            _draw_head(figure, part, (layer, head), corner)
        if heads > 1:
            axes = _axes(figure, x0 + abreast * (SIDE + GAP) + 0.1, y, SIDE * 0.75)
            _draw_similarity(axes, similarity_LHH[layer], first=layer == 0)


def _draw_head(
    figure: Any, part: Maps, which: tuple[int, int], corner: tuple[float, float]
) -> None:
    """Draw one map, with labels above the first line and beside the first head of a line."""
    (layer, head), (x, y) = which, corner
    axes = _axes(figure, x, y, SIDE)
    _draw_map(axes, part.weights_LHTS[layer, head], HEAT, GAMMA)
    _write_labels(axes, part, rows=head % ABREAST == 0, columns=layer == 0 and head < ABREAST)
    caption = f"{head + 1}  {part.descriptions[layer][head]}"
    _write(figure, x, y + SIDE + 0.12, caption, size=9, color=QUIET)
    if head == 0:
        axes.set_ylabel(f"layer {layer + 1}", color=INK, fontsize=10, labelpad=3)


def _write(figure: Any, x: float, y: float, text: str, **style: Any) -> None:
    """Write a line centred y inches from the top, without parsing math."""
    wide, high = figure.get_size_inches()
    figure.text(x / wide, 1 - y / high, text, va="center", parse_math=False, **style)


def _axes(figure: Any, x: float, y: float, side: float) -> Any:
    """Return square axes with the top left corner at (x, y) inches from the top left."""
    wide, high = figure.get_size_inches()
    return figure.add_axes((x / wide, 1 - (y + side) / high, side / wide, side / high))


def _draw_map(axes: Any, weights_TS: Any, colours: Sequence[str], gamma: float) -> None:
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    palette = LinearSegmentedColormap.from_list("", list(colours))
    norm = PowerNorm(gamma, 0, 1)
    axes.imshow(
        weights_TS.clamp(0, 1).numpy(),
        cmap=palette,
        norm=norm,
        aspect="auto",
        interpolation="nearest",
    )
    axes.spines[:].set_color(GRID)
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.set_yticks([])


def _write_labels(axes: Any, part: Maps, *, rows: bool, columns: bool) -> None:
    if columns:
        places = _label_places(part.keys)
        axes.xaxis.tick_top()
        axes.set_xticks(places, [_short(part.keys[place]) for place in places])
        axes.tick_params(axis="x", labelrotation=90, labelsize=_label_size(part.keys), colors=INK)
    if rows:
        places = _label_places(part.queries)
        axes.set_yticks(places, [_short(part.queries[place]) for place in places])
        axes.tick_params(axis="y", labelsize=_label_size(part.queries), colors=INK)
    axes.tick_params(pad=2, length=0)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)


def _label_places(labels: Sequence[str]) -> range:
    return range(0, len(labels), -(-len(labels) // MOST_LABELS))


def _label_size(labels: Sequence[str]) -> float:
    """Return the font size at which labels do not overlap."""
    return max(3.0, min(9.0, 0.95 * 72 * SIDE / len(_label_places(labels))))


def _short(label: str) -> str:
    return label if len(label) <= 9 else f"{label[:8]}…"


def _draw_similarity(axes: Any, similarity_HH: Any, *, first: bool) -> None:
    """Draw the similarity of a layer's heads, with values for few heads."""
    _draw_map(axes, similarity_HH, SIMILARITY, 1.0)
    heads = len(similarity_HH)
    axes.set_xticks(range(heads), range(1, heads + 1))
    axes.set_yticks(range(heads), range(1, heads + 1))
    axes.yaxis.tick_right()
    axes.tick_params(labelsize=8, colors=QUIET, pad=1, length=0)
    if first:
        axes.set_title("heads alike", fontsize=9.5, color=INK, loc="left", pad=4)
    if heads > ABREAST:
        return
    for row in range(heads):
        for column in range(heads):
            value = float(similarity_HH[row, column])
            colour = "white" if value > 0.55 else INK
            if row != column:
                style = {"ha": "center", "va": "center", "fontsize": 8, "color": colour}
                axes.text(column, row, f"{value:.2f}"[1:], **style)


HEAD_PLANE_SIDE = 3.6
"""Inches of a plane."""


def draw_head_plane(maps: AttentionMaps, path: Path) -> None:
    """Draw a row per part of the model: the plane of its heads, and their similarity by layer."""
    rows = len(maps.parts)
    figure = new_figure(
        "the plane of heads",
        figsize=(2 * HEAD_PLANE_SIDE + 0.8, rows * HEAD_PLANE_SIDE),
        layout="constrained",
    )
    axes = figure.subplots(rows, 2, squeeze=False)
    for (left, right), part in zip(axes, maps.parts, strict=True):
        plane = head_plane(part)
        _draw_points(left, plane, f"{part.name}: heads that look alike lie together")
        _draw_layers(right, plane)
    save_figure(figure, path, dpi=130)


def _draw_points(axes: Any, plane: HeadPlane, title: str) -> None:
    from matplotlib import colormaps

    layers = len(plane.points_LH2)
    style_axes(axes, labelsize=8)
    for layer, points_H2 in enumerate(plane.points_LH2.numpy()):
        colour = colormaps["viridis"](layer / max(layers - 1, 1) * 0.9)
        axes.scatter(*points_H2.T, s=46, color=colour, label=f"{layer + 1}", zorder=2)
        for head, (x, y) in enumerate(points_H2):
            axes.annotate(
                str(head + 1), (x, y), fontsize=6, color="white", ha="center", va="center", zorder=3
            )
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_aspect("equal", adjustable="datalim")
    legend = axes.legend(title="layer", fontsize=7, title_fontsize=8, frameon=False, ncols=2)
    legend.get_title().set_color(QUIET)
    axes.text(
        0.99, 0.01, f"{plane.kept:.0%} of what tells them apart", fontsize=7, color=QUIET,
        ha="right", va="bottom", transform=axes.transAxes,
    )  # fmt: skip


def _draw_layers(axes: Any, plane: HeadPlane) -> None:
    style_axes(axes, labelsize=8)
    numbers = range(1, len(plane.alike_L) + 1)
    axes.bar(numbers, plane.alike_L.numpy(), color=TEAL, width=0.6)
    axes.set_xticks(list(numbers))
    axes.set_ylim(0, 1)
    axes.set_xlabel("layer", fontsize=9, color=INK)
    title = f"how alike two heads of a layer are (trend {plane.trend:+.2f})"
    axes.set_title(title, fontsize=10, color=INK, loc="left")
