"""The learning curve of a run: loss, the validation metric, the learning rate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.errors import InputError
from outrider.show.palette import INK, ORANGE, QUIET, new_figure, save_figure, style_axes

_TRAIN, _VALID, _SCORE, _RATE = "#9fb3c8", "#0b69a3", ORANGE, QUIET


def draw_curve(records: Sequence[dict[str, Any]], path: Path, *, title: str) -> None:
    """Draw the records of a run's log."""
    updates = [record for record in records if record["event"] == "update"]
    evaluations = [record for record in records if record["event"] == "evaluation"]
    if not updates:
        raise InputError(f"{path}: the log has no update yet, so there is no curve to draw")
    figure = new_figure("the learning curve", figsize=(9, 6.2), layout="constrained")
    (top, bottom) = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [4, 1]})
    _draw_loss(top, updates, evaluations)
    _draw_rate(bottom, updates)
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK)
    save_figure(figure, path, dpi=150, facecolor="white")


def _draw_loss(axes: Any, updates: list[dict[str, Any]], evaluations: list[dict[str, Any]]) -> None:
    style_axes(axes)
    axes.margins(x=0.02)
    steps, losses = _column(updates, "loss")
    valid_steps, valid_losses = _column(evaluations, "loss")
    axes.plot(steps, losses, color=_TRAIN, linewidth=1.2)
    if valid_steps:
        axes.plot(valid_steps, valid_losses, color=_VALID, linewidth=2, marker="o", markersize=3)
        above = valid_losses[-1] >= losses[-1]
        _name_line(axes, valid_steps, valid_losses, "validation loss", _VALID, above=above)
        _name_line(axes, steps, losses, "training loss", INK, above=not above)
    else:
        _name_line(axes, steps, losses, "training loss", INK, above=True)
    axes.set_ylabel("nats per target token", color=INK)
    axes.set_ylim(_limits([*losses, *valid_losses]))
    _draw_bleu(axes, evaluations)


def _limits(values: list[float]) -> tuple[float, float]:
    """Return axis limits without the first updates, which would compress the rest."""
    low, high = min(values), sorted(values)[int(0.97 * (len(values) - 1))]
    span = high - low or 1.0
    return low - 0.12 * span, high + 0.15 * span


def _draw_bleu(axes: Any, evaluations: list[dict[str, Any]]) -> None:
    steps, scores = _column(evaluations, "bleu")
    if not steps:
        return
    right = axes.twinx()
    right.plot(steps, scores, color=_SCORE, linewidth=2, marker="o", markersize=3)
    best = max(range(len(scores)), key=scores.__getitem__)
    right.annotate(
        f"best BLEU {scores[best]:.1f}",
        (steps[best], scores[best]),
        textcoords="offset points",
        xytext=(0, 8),
        ha="right",
        color=_SCORE,
        fontweight="bold",
    )
    right.set_ylabel("validation BLEU", color=_SCORE)
    right.tick_params(colors=_SCORE, length=0)
    right.set_ylim(0, max(scores) * 1.15 or 1)
    right.spines[:].set_visible(False)


def _draw_rate(axes: Any, updates: list[dict[str, Any]]) -> None:
    style_axes(axes)
    axes.margins(x=0.02)
    steps, rates = _column(updates, "learning_rate")
    axes.fill_between(steps, rates, color=_RATE, alpha=0.25, linewidth=0)
    axes.plot(steps, rates, color=_RATE, linewidth=1.2)
    axes.set_ylabel("learning rate", color=INK)
    axes.set_xlabel("update", color=INK)
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))


def _name_line(
    axes: Any,
    steps: Sequence[float],
    values: Sequence[float],
    name: str,
    color: str,
    *,
    above: bool,
) -> None:
    """Write a line's name beside its last point."""
    axes.annotate(
        f"{name} {values[-1]:.2f}",
        (steps[-1], values[-1]),
        textcoords="offset points",
        xytext=(0, 7 if above else -7),
        ha="right",
        va="bottom" if above else "top",
        color=color,
    )


def _column(records: list[dict[str, Any]], name: str) -> tuple[list[float], list[float]]:
    selected = [record for record in records if name in record]
    return [record["step"] for record in selected], [record[name] for record in selected]
