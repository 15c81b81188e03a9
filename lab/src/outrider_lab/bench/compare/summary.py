"""Summarise the trials of a comparison over seeds, and format them as a table.

value      mean over the seeds of the task's metric, by length
learned    share of the seeds that reach LEARNED at the longest length of training
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

LEARNED = 0.9
"""Accuracy from which a task counts as learned."""

Run = Mapping[str, Any]
Model = Mapping[str, Any]

_NAMES = {"accuracy": "right", "bits_per_character": "bits/char", "bleu": "BLEU"}


def summarise(runs: Sequence[Run], *, trained_length: int | None) -> dict[str, Any]:
    """Summarise the runs of one model over its seeds."""
    metric = runs[0]["scores"]["metric"]
    points = [
        _summarise_point([run["scores"]["points"][place] for run in runs])
        for place in range(len(runs[0]["scores"]["points"]))
    ]
    return {
        "metric": metric,
        "points": points,
        "learned": _learned(runs, trained_length) if metric == "accuracy" else None,
        "loss": _mean([run["curve"][-1]["loss"] if run["curve"] else None for run in runs]),
        "steps": fmean(run["steps"] for run in runs),
        "seconds": fmean(run["seconds"] for run in runs),
        "cpu_seconds": _mean_of_all([run.get("cpu_seconds") for run in runs]),
        "tokens_per_second": _mean([run["tokens_per_second"] for run in runs]),
        "peak_bytes": max((run["peak_bytes"] for run in runs if run["peak_bytes"]), default=None),
    }


def table(result: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the headers and rows of the table, a row per trained model."""
    trained = [model for model in result["models"] if model["status"] == "trained"]
    points = trained[0]["summary"]["points"] if trained else []
    metric = trained[0]["summary"]["metric"] if trained else "accuracy"
    lengths = [point["length"] for point in points]
    several = result["seeds"] > 1
    pondered = any("ponder" in point for model in trained for point in model["summary"]["points"])
    name = _NAMES[metric]
    headers = [
        "model",
        "parameters",
        "loss",
        *(name if length is None else f"{name} at {length}" for length in lengths),
        *(["seeds that learn"] if several and metric == "accuracy" else []),
        *(["ponder steps"] if pondered else []),
        "updates",
        "CPU time, s" if time_key(trained) == "cpu_seconds" else "time, s",
        "memory, MiB",
    ]
    rows = [_row(model, time_key(trained), several=several, pondered=pondered) for model in trained]
    return tuple(headers), rows


def title(result: Mapping[str, Any]) -> str:
    """Return the task, the budget and the number of seeds."""
    seeds = f"{result['seeds']} seeds" if result["seeds"] > 1 else "one seed"
    task, budget = result["task"], result["budget"]
    name = f"{task['name']} of {task['corpus']}" if "corpus" in task else task["name"]
    if budget["steps"] is not None:
        return f"{name}: {budget['steps']:,} updates each, {seeds}"
    return f"{name}: {budget['minutes']:g} minutes each, {seeds}"


def failures(result: Mapping[str, Any]) -> list[str]:
    """Return a line per message about models or seeds that failed."""
    return [
        f"{model['name']}: {model['status']}, {message}"
        if model["status"] != "trained"
        else f"{model['name']}: {message}"
        for model in result["models"]
        for message in model["messages"]
    ]


def time_key(models: Sequence[Model]) -> str:
    """Return the key of CPU time if it is known for all models, else of wall time.

    CPU time is not affected by other programs; it is unknown for runs that were interrupted.
    """
    known = all(model["summary"].get("cpu_seconds") is not None for model in models)
    return "cpu_seconds" if known else "seconds"


def _row(model: Model, time: str, *, several: bool, pondered: bool) -> tuple[str, ...]:
    summary = model["summary"]
    cells = [model["name"], f"{model['parameters']:,}", _show(summary["loss"], "loss")]
    cells += [_show_point(point, summary["metric"]) for point in summary["points"]]
    if several and summary["metric"] == "accuracy":
        cells.append(f"{summary['learned']:.0%}")
    if pondered:
        known = [point["ponder"] for point in summary["points"] if "ponder" in point]
        cells.append(" ".join(f"{steps:.1f}" for steps in known) or "-")
    return (
        *cells,
        f"{summary['steps']:,.0f}",
        f"{summary[time]:,.0f}",
        "-" if summary["peak_bytes"] is None else f"{summary['peak_bytes'] / 2**20:,.0f}",
    )


def _show_point(point: Mapping[str, Any], metric: str) -> str:
    shown = _show(point["value"], metric)
    if point["value"] is None or point["least"] == point["most"]:
        return shown
    return f"{shown} ({_show(point['least'], metric)} to {_show(point['most'], metric)})"


def _show(value: float | None, metric: str) -> str:
    if value is None:
        return "-"
    if metric == "accuracy":
        return f"{value:.1%}"
    return f"{value:.1f}" if metric == "bleu" else f"{value:.3f}"


def _summarise_point(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    values = [point["value"] for point in points if point["value"] is not None]
    found: dict[str, Any] = {
        "length": points[0]["length"],
        "value": _mean(values),
        "least": min(values, default=None),
        "most": max(values, default=None),
    }
    for name in ("token_accuracy", "chance", "ponder"):
        known = [point[name] for point in points if point.get(name) is not None]
        if known:
            found[name] = fmean(known)
    return found


def _learned(runs: Sequence[Run], trained_length: int | None) -> float:
    """Return the share of seeds that learned, at the longest test length within training."""
    lengths = [point["length"] for point in runs[0]["scores"]["points"]]
    within = [length for length in lengths if trained_length and length <= trained_length]
    place = lengths.index(max(within) if within else min(lengths))
    values = [run["scores"]["points"][place]["value"] or 0.0 for run in runs]
    return fmean(value >= LEARNED for value in values)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None
