"""Time and memory of every attention by length, as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.show.palette import INK, QUIET, SERIES, load_pyplot, save_figure, style_axes

MEASURES = (
    ("training_seconds", "seconds, forward and backward", 1.0),
    ("training_peak_bytes", "peak memory, MiB, forward and backward", 2.0**20),
)


def draw_scaling(result: dict[str, Any], path: Path) -> None:
    """Draw the result of `measure_scaling`."""
    pyplot = load_pyplot("the picture of the scaling")
    figure = pyplot.figure(figsize=(12, 5.4), layout="constrained", facecolor="white")
    try:
        colours = _colours(result)
        for axes, (name, label, unit) in zip(figure.subplots(1, 2), MEASURES, strict=True):
            for kind, figures in result["kinds"].items():
                _draw_kind(axes, figures["points"], name, unit, kind, colours[kind])
            _style(axes, label, result)
        setting = result["setting"]
        title = f"One attention of {setting['heads']} heads of {setting['width']}, by length"
        figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK)
        figure.legend(
            *figure.axes[0].get_legend_handles_labels(),
            loc="outside right center",
            frameon=False,
            labelcolor=INK,
        )
        save_figure(figure, path, dpi=150)
    finally:
        pyplot.close(figure)


def _colours(result: dict[str, Any]) -> dict[str, str]:
    others = [kind for kind in result["kinds"] if kind != result["peer"]]
    return {
        result["peer"]: INK,
        **{kind: SERIES[rank % len(SERIES)] for rank, kind in enumerate(others)},
    }


def _draw_kind(
    axes: Any, points: Sequence[dict[str, Any]], name: str, unit: float, kind: str, colour: str
) -> None:
    """Draw one line; points computed densely are hollow."""
    known = [point for point in points if point[name] > 0]
    at = [point["length"] for point in known], [point[name] / unit for point in known]
    axes.plot(*at, color=colour, linewidth=1.8, label=kind)
    for point in known:
        fill = "white" if point["dense"] else colour
        style = {"color": colour, "markerfacecolor": fill, "markersize": 5.5, "marker": "o"}
        axes.plot(point["length"], point[name] / unit, **style)


def _style(axes: Any, label: str, result: dict[str, Any]) -> None:
    lengths = sorted({p["length"] for k in result["kinds"].values() for p in k["points"]})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 else str(n) for n in lengths])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title(label, loc="left", fontsize=11, color=INK)
    axes.set_xlabel("tokens (hollow: computed densely)", color=QUIET)
    style_axes(axes)
    axes.minorticks_off()
