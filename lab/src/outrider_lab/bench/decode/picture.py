"""The result of `bench decode` as a picture: sentences per second, a panel per batch size."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.show.palette import (
    INDIGO,
    INK,
    OCHRE,
    ORANGE,
    QUIET,
    TEAL,
    load_pyplot,
    save_figure,
    style_axes,
)

_COLOURS = {
    "outrider-native": TEAL,
    "outrider-torch": INDIGO,
    "shallow": OCHRE,
    "ctranslate2": ORANGE,
    "transformers": QUIET,
}
"""By prefix of the engine's name."""


def draw_decode_speed(result: dict[str, Any], path: Path) -> None:
    """Draw every engine at its best number of threads."""
    pyplot = load_pyplot("the picture of decoding speeds")
    batches = list(dict.fromkeys(row["batch"] for row in result["rows"]))
    names = list(dict.fromkeys(_name(row) for row in result["rows"]))
    lines = max(1, -(-len(batches) // 2))
    figure, grid = pyplot.subplots(
        *(lines, min(2, max(1, len(batches)))),
        figsize=(9.0, 1.0 + lines * (0.7 + 0.34 * len(names))),
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    panels = [axes for line in grid for axes in line]
    try:
        for batch, axes in zip(batches, panels, strict=False):
            _draw_panel(axes, [row for row in result["rows"] if row["batch"] == batch], names)
            axes.set_title(f"batch {batch}", loc="left", fontsize=11, color=INK)
        for axes in panels[max(1, len(batches)) :]:
            axes.set_visible(False)
        title = f"{result['model']}: sentences a second, {_machine(result['machine'])}"
        style = {"x": 0.01, "ha": "left", "fontweight": "bold", "color": INK}
        figure.suptitle(title, fontsize=13, **style)
        figure.supxlabel(
            "x: relative to CTranslate2 int8, both at their best number of threads",
            **{"x": 0.01, "ha": "left", "fontsize": 8.5, "color": QUIET},
        )
        save_figure(figure, path, dpi=150, facecolor="white", pil_kwargs={"optimize": True})
    finally:
        pyplot.close(figure)


def _draw_panel(axes: Any, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Draw bars for the first order, and a line across a bar for the other order."""
    best = [row for row in rows if row["best_threads"]]
    orders = list(dict.fromkeys(row["order"] for row in best))
    fastest = max((row["sentences_per_second"] for row in best), default=1.0)
    reach: dict[int, float] = {}
    for row in best:
        place, speed = names.index(_name(row)), row["sentences_per_second"]
        reach[place] = max(reach.get(place, 0.0), speed)
        if row["order"] == orders[0]:
            axes.barh(place, speed, height=0.72, color=_colour(row))
        else:
            axes.plot([speed, speed], [place - 0.36, place + 0.36], color=INK, linewidth=1.4)
    for row in best:
        if row["order"] == orders[0]:
            place = names.index(_name(row))
            axes.text(reach[place] + 0.02 * fastest, place, _label(row), va="center", **_TEXT)
    if len(orders) > 1:
        axes.set_xlabel(f"bars: {orders[0]}, lines: {orders[1]}", fontsize=8.5, color=QUIET)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.45 * fastest)
    style_axes(axes, labelsize=9)
    axes.grid(visible=False, axis="y")


_TEXT: dict[str, Any] = {"fontsize": 8.5, "color": INK}


def _machine(machine: dict[str, Any]) -> str:
    """Return the processor, and the instruction set that Outrider uses on it."""
    name = machine["processor"].replace("(R)", "").replace(" Processor", "")
    sets = {"amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx2": "AVX2"}
    best = next((word for key, word in sets.items() if key in machine["instructions"]), None)
    return name if best is None else f"{name} with {best}"


def _name(row: dict[str, Any]) -> str:
    isa = row.get("isa")
    return f"{row['engine']}  {row['mode']}" + (f"  ({isa})" if isa else "")


def _label(row: dict[str, Any]) -> str:
    """Return the speed, the ratio to CTranslate2 int8, and the number of threads."""
    ratio = row["best_ratio_to_ctranslate2_int8"]
    compared = "" if ratio is None else f"  {ratio:.2f}x"
    return f"{row['sentences_per_second']:,.0f}{compared}  ({row['threads']} thr.)"


def _colour(row: dict[str, Any]) -> str:
    for start, colour in _COLOURS.items():
        if row["engine"].startswith(start):
            return colour
    return QUIET
