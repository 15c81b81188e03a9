"""The heads of a model as points, coloured by layer, and how alike each layer's heads are."""

from pathlib import Path
from typing import Any

from outrider.show.palette import INK, QUIET, TEAL
from outrider.show.pictures.pyplot import load_pyplot, save_figure, style_axes
from outrider.torch.inspect.attention_maps import AttentionMaps
from outrider.torch.inspect.head_plane import HeadPlane, head_plane

__all__ = ["draw_head_plane"]

SIDE = 3.6
"""Inches of a plane."""


def draw_head_plane(maps: AttentionMaps, path: Path) -> None:
    """Draw a row for every part of the model: its plane, and its layers."""
    pyplot = load_pyplot("the plane of heads")
    rows = len(maps.parts)
    figure, axes = pyplot.subplots(
        rows, 2, figsize=(2 * SIDE + 0.8, rows * SIDE), squeeze=False, layout="constrained"
    )
    try:
        for (left, right), part in zip(axes, maps.parts, strict=True):
            plane = head_plane(part)
            _draw_points(left, plane, f"{part.name}: heads that look alike lie together")
            _draw_layers(right, plane)
        save_figure(figure, path, dpi=130)
    finally:
        pyplot.close(figure)


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
