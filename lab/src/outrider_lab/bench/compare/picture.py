"""A comparison as one picture: losses, scores, and costs of every model, a page wide."""

from collections.abc import Callable, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from outrider.errors import InputError
from outrider.show.palette import (
    FAINT,
    GRID,
    INK,
    QUIET,
    SERIES,
    TEAL,
    load_pyplot,
    rgb,
    save_figure,
    style_axes,
)
from outrider_lab.bench.compare.summary import time_key, title

WIDTH = 9.0
"""Inches."""
COLUMNS = 4

Model = dict[str, Any]


def draw_comparison(result: dict[str, Any], path: Path) -> None:
    """Draw the result of `compare`."""
    models = _short_names([model for model in result["models"] if model["status"] == "trained"])
    if not models:
        raise InputError(f"{path}: no model was trained, so there is nothing to draw")
    pyplot = load_pyplot("the picture of a comparison")
    columns = min(COLUMNS, len(models))
    rows = -(-len(models) // columns)
    lines = max(len(_notes(point)) for model in models for point in model["summary"]["points"])
    cell = 0.44 + 0.16 * max(0, lines - 1)
    heights = [1.9 * rows + 0.5, cell * len(models) + 0.9, 0.34 * len(models) + 0.8]
    figure = pyplot.figure(figsize=(WIDTH, sum(heights) + 0.5), layout="constrained")
    try:
        top, middle, bottom = figure.subfigures(3, 1, height_ratios=heights)
        _draw_losses(top, models, (rows, columns), clock=result["budget"]["steps"] is None)
        _draw_quality(middle, models, result["task"].get("train_length"))
        _draw_costs(bottom, models)
        figure.suptitle(title(result), x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK)
        save_figure(figure, path, dpi=150, facecolor="white", pil_kwargs={"optimize": True})
    finally:
        pyplot.close(figure)


def _short_names(models: Sequence[Model]) -> list[Model]:
    """Name models by their varied keys only, if all have the same config."""
    parts = [str(model["name"]).split(" ", 1) for model in models]
    if any(part[1:] == [] or part[0] != parts[0][0] for part in parts):
        return list(models)
    return [{**model, "name": part[1]} for model, part in zip(models, parts, strict=True)]


def _draw_losses(
    figure: Any, models: Sequence[Model], shape: tuple[int, int], *, clock: bool
) -> None:
    """Draw a panel per model: its own seeds in colour, other models of its type faintly."""
    grid = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False)
    panels = [axes for row in grid for axes in row]
    label = "minutes" if clock else "updates"
    curves = [[_curve(run, clock=clock) for run in model["runs"]] for model in models]
    for place, axes in enumerate(panels):
        if place >= len(models):
            axes.set_visible(False)
            continue
        style_axes(axes, labelsize=8)
        alike = [
            m["type"] == models[place]["type"] for m in models
        ]  # losses of types are not comparable
        for curve in (curve for others in compress(curves, alike) for curve in others):
            axes.plot(*curve, color=FAINT, linewidth=0.8)
        for curve in curves[place]:
            axes.plot(*curve, color=_colour(place), linewidth=2, marker="o", markersize=2.5)
        axes.set_title(models[place]["name"], loc="left", fontsize=10, color=_colour(place))
        if place + shape[1] >= len(models):
            axes.set_xlabel(label, color=QUIET, fontsize=9)
            axes.tick_params(labelbottom=True)
    panels[0].set_ylabel("validation loss, nats a token", color=INK, fontsize=9)


def _curve(run: dict[str, Any], *, clock: bool) -> tuple[list[float], list[float]]:
    points = [point for point in run["curve"] if not clock or point["seconds"] is not None]
    along = [point["seconds"] / 60 if clock else point["step"] for point in points]
    return along, [point["loss"] for point in points]


def _draw_quality(figure: Any, models: Sequence[Model], trained_length: int | None) -> None:
    """Draw a row per model: accuracy by length, or its score."""
    axes = figure.subplots()
    if models[0]["summary"]["metric"] == "accuracy":
        _draw_accuracy(axes, models, trained_length)
    else:
        name = {"bleu": "BLEU", "bits_per_character": "bits per character"}
        metric = models[0]["summary"]["metric"]
        _draw_bars(axes, models, name[metric], _value)
    _name_rows(axes, models)


def _draw_costs(figure: Any, models: Sequence[Model]) -> None:
    """Draw time, memory and parameters in the same order."""
    pondered = any("ponder" in point for model in models for point in model["summary"]["points"])
    panels = figure.subplots(1, 4 if pondered else 3)
    time = time_key(models)
    label = "minutes of CPU" if time == "cpu_seconds" else "minutes of training"
    _draw_bars(panels[0], models, label, lambda m: m["summary"][time] / 60)
    memory = lambda m: (m["summary"]["peak_bytes"] or 0) / 2**20  # noqa: E731 - like the others
    _draw_bars(panels[1], models, "peak memory, MiB", memory)
    _draw_bars(panels[2], models, "parameters, k", lambda m: m["parameters"] / 1000)
    _name_rows(panels[0], models)
    if pondered:
        _draw_ponder(panels[3], models)


def _value(model: Model) -> float:
    return float(model["summary"]["points"][0]["value"])


def _draw_accuracy(axes: Any, models: Sequence[Model], trained_length: int | None) -> None:
    """Draw a cell per length, darker for higher accuracy."""
    lengths = [point["length"] for point in models[0]["summary"]["points"]]
    for row, model in enumerate(models):
        for column, point in enumerate(model["summary"]["points"]):
            _draw_cell(axes, row, column, point)
    axes.set_xticks(range(len(lengths)), map(str, lengths))
    axes.set_xlim(-0.5, len(lengths) - 0.5)
    label = "exactly right, by length of the input"
    within = sum(length <= (trained_length or 0) for length in lengths)
    if 0 < within < len(lengths):
        axes.axvline(within - 0.5, color=INK, linewidth=1.5, linestyle=(0, (4, 3)))
        label += f"; trained up to {trained_length}"
    _style_rows(axes, models, label)
    axes.tick_params(labelbottom=True)


def _draw_cell(axes: Any, row: int, column: int, point: dict[str, Any]) -> None:
    """Write the accuracy and smaller notes below it."""
    value, notes = point["value"], _notes(point)
    cell = _shade(0.0 if value is None else value)
    axes.barh(row, 0.96, left=column - 0.48, height=0.86, color=cell, edgecolor=GRID)
    ink = "white" if value is not None and value > 0.6 else INK
    style = {"ha": "center", "va": "center", "color": ink}
    shown = "too long" if value is None else f"{100 * value:.0f} %"
    up = (0.0, 0.17, 0.22)[len(notes)]
    axes.text(column, row - up, shown, fontsize=9 if value is None else 10, **style)
    if notes:
        axes.text(column, row + 0.41 - up, "\n".join(notes), fontsize=8, **style)


def _notes(point: dict[str, Any]) -> list[str]:
    """Return the range over seeds, and the token accuracy if it differs."""
    value, symbols = point["value"], point.get("token_accuracy")
    if value is None:
        return []
    notes = []
    if point["least"] != point["most"]:
        notes.append(f"{100 * point['least']:.0f} to {100 * point['most']:.0f}")
    if symbols is not None and abs(symbols - value) >= 0.005:
        notes.append(f"symbols {100 * symbols:.0f} %")
    return notes


def _shade(value: float) -> tuple[float, ...]:
    """Interpolate between white (0) and teal (1)."""
    return tuple(1 - value * (1 - part) for part in rgb(TEAL))


def _draw_bars(
    axes: Any, models: Sequence[Model], label: str, value: Callable[[Model], float]
) -> None:
    values = [value(model) for model in models]
    colours = [_colour(place) for place in range(len(models))]
    axes.barh(range(len(models)), values, height=0.62, color=colours, alpha=0.85)
    for row, number in enumerate(values):
        axes.annotate(
            f"{number:,.{0 if number >= 100 else 1 if number >= 10 else 2}f}",
            (number, row),
            textcoords="offset points",
            xytext=(4, 0),
            va="center",
            fontsize=9,
            color=INK,
        )
    axes.set_xlim(0, 1.35 * max([*values, 1e-9]))
    _style_rows(axes, models, label)


def _draw_ponder(axes: Any, models: Sequence[Model]) -> None:
    style_axes(axes, labelsize=8)
    for place, model in enumerate(models):
        for run in model["runs"]:
            known = [point for point in run["scores"]["points"] if point.get("ponder") is not None]
            at = [point["length"] for point in known], [point["ponder"] for point in known]
            axes.plot(*at, color=_colour(place), marker="o", markersize=3, linewidth=1.5)
    axes.set_title("ponder steps", loc="left", fontsize=10, color=INK)
    axes.set_xlabel("length of the input", color=QUIET, fontsize=9)
    axes.margins(y=0.2)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.9), max(high, 2.1))  # show at least about one step


def _name_rows(axes: Any, models: Sequence[Model]) -> None:
    """Write the names, and the number of seeds that learn."""
    names = []
    for model in models:
        learned, seeds = model["summary"]["learned"], len(model["runs"])
        several = learned is not None and seeds > 1
        note = f"\n{learned * seeds:.0f} of {seeds} seeds learn" if several else ""
        names.append(f"{model['name']}{note}")
    axes.tick_params(labelleft=True)
    axes.set_yticks(range(len(models)), names)
    for place, label in enumerate(axes.get_yticklabels()):
        label.set_color(_colour(place))


def _style_rows(axes: Any, models: Sequence[Model], label: str) -> None:
    axes.set_ylim(len(models) - 0.5, -0.5)
    axes.set_title(label, loc="left", fontsize=10, color=INK)
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=INK, length=0, labelleft=False, labelbottom=False)


def _colour(place: int) -> str:
    return SERIES[place % len(SERIES)]
