"""Decoding modes as a picture: quality against speed, acceptance of drafts, and batch sizes."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from outrider.show.palette import (
    INDIGO,
    INK,
    ORANGE,
    QUIET,
    TEAL,
    load_pyplot,
    save_figure,
    style_axes,
)

_COLOURS = {"ar": INK, "tandem": TEAL, "ctc": ORANGE, "drafter": INDIGO}
_NAMES = {
    "ar": "token by token",
    "tandem": "tandem",
    "ctc": "parallel, CTC",
    "drafter": "parallel, mask-predict",
}
_MARKERS = {"ar": "*", "tandem": "o", "ctc": "s", "drafter": "D"}
_SIZES = {"ar": 15, "tandem": 7, "ctc": 6, "drafter": 5.5}
_SIDES = ((0, 1), (1, 0), (0, -1), (-1, 0), (0.7, 0.8), (0.7, -0.8), (-0.7, 0.8), (-0.7, -0.8))
_OFFSETS = [(x * reach, y * reach) for reach in (8, 14, 22) for x, y in _SIDES]
"""Candidate positions of a point's label, in points; nearest first."""


def draw_modes(result: dict[str, Any], path: Path, *, title: str) -> None:
    """Draw the result of `measure_modes`."""
    pyplot = load_pyplot("the picture of the modes")
    figure = pyplot.figure(figsize=(12, 6), layout="constrained")
    try:
        grid = figure.add_gridspec(2, 2, width_ratios=[2.1, 1])
        _draw_points(figure, figure.add_subplot(grid[:, 0]), result["modes"])
        _draw_acceptance(figure.add_subplot(grid[0, 1]), result["modes"])
        _draw_batches(figure.add_subplot(grid[1, 1]), result["modes"])
        figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK)
        save_figure(figure, path, dpi=150, facecolor="white")
    finally:
        pyplot.close(figure)


def _draw_points(figure: Any, axes: Any, modes: Sequence[dict[str, Any]]) -> None:
    style_axes(axes)
    shown = [mode for mode in modes if mode["speed"][0]["ratio_to_greedy"] is not None]
    batch = modes[0]["speed"][0]["batch"]
    axes.axhline(modes[0]["bleu"], color=QUIET, linewidth=0.8, linestyle=(0, (4, 4)))
    for family, colour in _COLOURS.items():
        points = [_point(mode) for mode in shown if mode["family"] == family]
        if points:
            line = _line(shown, family)
            axes.plot(*zip(*line, strict=True), color=colour, linewidth=1.2, alpha=0.45)
            style = {"marker": _MARKERS[family], "markersize": _SIZES[family], "linestyle": ""}
            axes.plot(*zip(*points, strict=True), color=colour, label=_NAMES[family], **style)
    axes.set_xscale("log")
    axes.set_xlabel(f"speed at batch {batch}, relative to greedy", color=INK)
    axes.set_ylabel("BLEU", color=INK)
    _label_speeds(axes, [_point(mode)[0] for mode in shown])
    axes.margins(x=0.12, y=0.14)
    axes.legend(frameon=False, loc="best", labelcolor=INK)
    _name_points(figure, axes, shown)


def _point(mode: dict[str, Any]) -> tuple[float, float]:
    return mode["speed"][0]["ratio_to_greedy"], mode["bleu"]


def _line(modes: Sequence[dict[str, Any]], family: str) -> list[tuple[float, float]]:
    """Return the points that differ by one setting; rescored candidates are not on the line."""
    same = [mode for mode in modes if mode["family"] == family]
    return [_point(mode) for mode in same if "candidates" not in mode["options"]]


def _label_speeds(axes: Any, ratios: Sequence[float]) -> None:
    """Write plain numbers on the logarithmic axis."""
    ticks = [0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    low, high = min(ratios) * 0.8, max(ratios) * 1.25
    axes.set_xticks([tick for tick in ticks if low <= tick <= high] or [1])
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")


def _name_points(figure: Any, axes: Any, modes: Sequence[dict[str, Any]]) -> None:
    """Place each label so that it overlaps no other label or point, if possible."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    occupied = [_around(point, 8) for point in axes.transData.transform([*map(_point, modes)])]
    for family in _COLOURS:
        line = _line(modes, family)
        for (x0, y0), (x1, y1) in pairwise(axes.transData.transform(line) if line else []):
            steps = [step / 40 for step in range(41)]
            occupied += [_around((x0 + s * (x1 - x0), y0 + s * (y1 - y0)), 1) for s in steps]
    legend = axes.get_legend()
    occupied += [legend.get_window_extent(renderer)] if legend is not None else []
    for mode in modes:
        candidates = []
        for rank, offset in enumerate(_OFFSETS):
            label = _annotate(axes, mode, offset)
            box = label.get_window_extent(renderer).expanded(1.04, 1.1)
            label.remove()
            inside = axes.get_window_extent(renderer)
            outside = box.x0 < inside.x0 or box.x1 > inside.x1 or box.y1 > inside.y1
            clashes = sum(box.overlaps(other) for other in occupied)
            candidates.append((clashes + outside, rank, offset, box))
        _, _, offset, box = min(candidates, key=lambda candidate: candidate[:2])
        _annotate(axes, mode, offset)
        occupied.append(box)


def _around(point: Sequence[float], reach: float) -> Any:
    from matplotlib.transforms import Bbox

    x, y = point
    return Bbox.from_extents(x - reach, y - reach, x + reach, y + reach)


def _annotate(axes: Any, mode: dict[str, Any], offset: tuple[float, float]) -> Any:
    x, y = offset
    from matplotlib.patheffects import withStroke

    return axes.annotate(
        mode["label"],
        _point(mode),
        textcoords="offset points",
        xytext=offset,
        ha="left" if x > 0 else "right" if x < 0 else "center",
        va="bottom" if y > 0 else "top" if y < 0 else "center",
        fontsize=9,
        color=_COLOURS[mode["family"]],
        path_effects=[withStroke(linewidth=3, foreground="white")],
    )


def _draw_acceptance(axes: Any, modes: Sequence[dict[str, Any]]) -> None:
    style_axes(axes)
    axes.set_title("drafts accepted up to position", loc="left", fontsize=10, color=INK)
    drafted = [mode for mode in modes if mode["acceptance_by_position"]]
    if not drafted:
        axes.text(0.5, 0.5, "no drafter", ha="center", color=QUIET, transform=axes.transAxes)
        return
    for rank, mode in enumerate(drafted):
        shares = [100 * share for share in mode["acceptance_by_position"]]
        fade = 1 - 0.75 * rank / max(1, len(drafted) - 1)
        places = range(1, len(shares) + 1)
        width = 2.2 if rank == 0 else 1.2
        style = {"color": _COLOURS["tandem"], "alpha": fade, "linewidth": width, "markersize": 3}
        axes.plot(places, shares, marker="o", label=mode["label"], **style)
    axes.set_ylim(0, 104)
    axes.set_xticks(range(1, len(drafted[0]["acceptance_by_position"]) + 1))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}%")
    axes.legend(frameon=False, fontsize=8, labelcolor=INK, handlelength=1.4)


def _draw_batches(axes: Any, modes: Sequence[dict[str, Any]]) -> None:
    """Draw the speed-up by batch size, a line per family."""
    style_axes(axes)
    axes.set_title("speed by batch size, relative to greedy", loc="left", fontsize=10, color=INK)
    axes.axhline(1, color=_COLOURS["ar"], linewidth=1)
    batches = [str(speed["batch"]) for speed in modes[0]["speed"]]
    for family in ("tandem", "ctc", "drafter"):
        first = next((mode for mode in modes if mode["family"] == family), None)
        if first is None:
            continue
        ratios = [speed["ratio_to_greedy"] for speed in first["speed"]]
        known = [(b, r) for b, r in zip(batches, ratios, strict=True) if r is not None]
        if known:
            style = {"color": _COLOURS[family], "marker": _MARKERS[family], "markersize": 5}
            axes.plot(*zip(*known, strict=True), label=first["name"], **style)
    axes.set_xlabel("batch size", color=INK)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.1, y=0.15)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, labelcolor=INK, handlelength=1.4)
