"""The result of `bench serve` as a picture: throughput and latency."""

from pathlib import Path
from typing import Any

from outrider.show.palette import INK, QUIET, SERIES, load_pyplot, save_figure, style_axes


def draw_serve(result: dict[str, Any], path: Path) -> None:
    """Draw throughput and latency over the number of clients."""
    pyplot = load_pyplot("the picture of a server under load")
    figure, (speed, waiting) = pyplot.subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
    servers = list(dict.fromkeys(row["server"] for row in result["rows"]))
    try:
        for name, color in zip(servers, SERIES, strict=False):
            rows = [row for row in result["rows"] if row["server"] == name]
            clients = [row["clients"] for row in rows]
            speeds = [row["sentences_per_second"] for row in rows]
            speed.plot(clients, speeds, color=color, marker="o", label=name)
            middle = [row["p50_ms"] for row in rows]
            late = [row["p99_ms"] for row in rows]
            waiting.plot(clients, middle, color=color, marker="o", label=name)
            waiting.fill_between(clients, middle, late, color=color, alpha=0.15, linewidth=0)
        speed.set_title("sentences a second", loc="left", fontsize=11, color=INK)
        waiting.set_title("milliseconds: p50, and up to p99", loc="left", fontsize=11, color=INK)
        waiting.set_yscale("log")
        speed.set_ylim(bottom=0)
        for axes in (speed, waiting):
            _finish(axes, sorted({row["clients"] for row in result["rows"]}))
        speed.legend(frameon=False, fontsize=9, labelcolor=INK)
        save_figure(figure, path, dpi=150, facecolor="white", pil_kwargs={"optimize": True})
    finally:
        pyplot.close(figure)


def _finish(axes: Any, clients: list[int]) -> None:
    style_axes(axes)
    axes.set_xscale("log", base=2)
    axes.set_xticks(clients, [str(count) for count in clients])
    axes.minorticks_off()
    axes.set_xlabel("clients at once", color=QUIET, fontsize=9)
