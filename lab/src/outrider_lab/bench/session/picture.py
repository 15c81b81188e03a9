"""Rows over rounds: batches of a fixed size above, a session below."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.show.palette import EMPTY, INK, QUIET, SERIES, load_pyplot, save_figure
from outrider_lab.bench.session.measure import Stay


def draw_session(batches: Sequence[Stay], session: Sequence[Stay], path: Path) -> None:
    """Draw which text occupied which row in which round, for both variants."""
    pyplot = load_pyplot("the picture of a session")
    rounds = max(stay.last for stay in (*batches, *session))
    places = 1 + max(stay.place for stay in (*batches, *session))
    figure, panels = pyplot.subplots(
        2, 1, figsize=(9, 1.6 + 0.36 * 2 * places), dpi=150, sharex=True, facecolor="white"
    )
    try:
        for axes, stays, name in zip(
            panels, (batches, session), ("fixed batches", "a session"), strict=True
        ):
            _panel(axes, stays, name, rounds, places)
        panels[1].set_xlabel("round", color=QUIET, fontsize=9)
        figure.tight_layout()
        save_figure(figure, path)
    finally:
        pyplot.close(figure)


def _panel(axes: Any, stays: Sequence[Stay], name: str, rounds: int, places: int) -> None:
    last = max(stay.last for stay in stays)
    for place in range(places):
        axes.barh(place, last, left=0, height=0.78, color=EMPTY)
    for stay in stays:
        color = SERIES[stay.text % len(SERIES)]
        length = stay.last - stay.first
        axes.barh(stay.place, length - 0.12, left=stay.first, height=0.78, color=color)
        middle = stay.first + length / 2
        label = str(stay.text + 1)
        axes.text(middle, stay.place, label, color="white", fontsize=7.5, ha="center", va="center")
    axes.set_title(
        f"{name}: {len(stays)} texts in {last} rounds", loc="left", color=INK, fontsize=10
    )
    axes.set_ylabel("place", color=QUIET, fontsize=9)
    axes.set_yticks([])
    axes.set_xlim(0, rounds)
    axes.set_ylim(places - 0.5, -0.5)
    axes.tick_params(colors=QUIET, labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
