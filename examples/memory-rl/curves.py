"""Learning curves of several seeds: the median, and the band of the middle half."""

from pathlib import Path
from typing import Any

import numpy as np

from outrider.show.palette import GRID, INK, QUIET, load_pyplot

__all__ = ["draw"]

COLOURS = ("#7b8794", "#2a9d8f", "#e76f51", "#264653")
SMOOTH = 5
"""Updates averaged for one point of a curve."""


def draw(results: list[dict[str, Any]], corridor: int, episodes: int, path: Path) -> None:
    """Draw one panel per learning rate and memory, with a band and lines for each model."""
    pyplot = load_pyplot("the learning curves")
    panels: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        panels.setdefault(_panel(result, corridor), []).append(result)
    size = (0.6 + 4.9 * len(panels), 4.6)
    figure = pyplot.figure(figsize=size, layout="constrained", facecolor="white")
    try:
        places = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (name, runs) in zip(places, panels.items(), strict=True):
            axes.axhline(50, color=QUIET, linewidth=1, linestyle=(0, (4, 4)), zorder=1)
            for result, colour in zip(runs, COLOURS, strict=False):
                _draw_model(axes, result, colour, episodes)
            _dress(axes, name)
        places[0].set_ylabel("right turns, %", color=QUIET)
        title = f"Remember a cue over {corridor} steps of noise"
        figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, pil_kwargs={"optimize": True})
    finally:
        pyplot.close(figure)


def _panel(result: dict[str, Any], corridor: int) -> str:
    """Return the common settings of a panel's runs."""
    segment, memory = (result["model"][key] for key in ("max_positions", "memory"))
    rate = f"learning rate {result['rate']:g}"
    if segment >= corridor + 2:
        return rate
    return f"segments of {segment} steps, memory {memory}, {rate}"


def _draw_model(axes: Any, result: dict[str, Any], colour: str, episodes: int) -> None:
    curves = 100 * np.array([_smooth(curve) for curve in result["curves"]])
    played = episodes * (np.arange(curves.shape[1]) + 1) / 1000
    low, middle, high = np.percentile(curves, [25, 50, 75], axis=0)
    axes.fill_between(played, low, high, color=colour, alpha=0.2, linewidth=0, zorder=2)
    axes.plot(played, curves.T, color=colour, linewidth=0.6, alpha=0.45, zorder=3)
    solved = f"{round(result['solved'] * len(curves))} of {len(curves)} solve it"
    label = f"{result['name']}: {solved}"
    axes.plot(played, middle, color=colour, linewidth=2.6, label=label, zorder=4)


def _smooth(curve: list[float]) -> Any:
    """Return the moving average of a curve."""
    total = np.cumsum([0.0, *curve])
    end = np.arange(1, len(curve) + 1)
    start = np.maximum(end - SMOOTH, 0)
    return (total[end] - total[start]) / (end - start)


def _dress(axes: Any, title: str) -> None:
    axes.set(ylim=(0, 102), xlim=(0, None))
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel("thousand episodes played", color=QUIET)
    axes.grid(axis="y", color=GRID, zorder=0)
    axes.tick_params(length=0, colors=QUIET)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.text(
        0.995,
        46,
        "without a memory",
        color=QUIET,
        fontsize=8.5,
        ha="right",
        zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
        transform=axes.get_yaxis_transform(),
    )
    axes.legend(frameon=False, labelcolor=INK, loc="lower right", fontsize=9.5)
