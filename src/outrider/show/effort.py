"""Pictures of the computation per token, and of attention spans."""

from collections.abc import Sequence
from pathlib import Path

from outrider.show.palette import INK, QUIET, SERIES, TEAL, new_figure, save_figure, style_axes
from outrider.torch.inspect.effort import Effort, Spans


def draw_effort(parts: Sequence[Effort], path: Path) -> None:
    """Draw a bar per token, a panel per part."""
    widest = max(len(part.labels) for part in parts)
    size = (max(4.0, 0.32 * widest + 1.2), 2.3 * len(parts))
    figure = new_figure("the picture of the steps", figsize=size, layout="constrained")
    axes = figure.subplots(len(parts), 1, squeeze=False)
    for (panel,), part in zip(axes, parts, strict=True):
        style_axes(panel, labelsize=8)
        places = range(len(part.labels))
        panel.bar(places, part.taken_T.numpy(), color=TEAL, width=0.7)
        panel.set_xticks(list(places), part.labels, rotation=90)
        for label in panel.get_xticklabels():
            label.set_parse_math(False)
        panel.set_xlim(-0.8, widest - 0.2)  # equally wide bars in all panels
        panel.set_ylim(0, part.most)
        panel.yaxis.get_major_locator().set_params(integer=True)
        title = f"{part.part}: {part.unit} of {part.most}, mean {float(part.taken_T.mean()):.2f}"
        panel.set_title(title, fontsize=10, color=INK, loc="left")
    save_figure(figure, path, dpi=120)


def draw_spans(spans: Spans, path: Path) -> None:
    """Draw the soft mask of every head by distance, a panel per layer."""
    layers = len(spans.names)
    length = min(spans.longest + spans.ramp, int(spans.span_LH.max()) + 2 * spans.ramp)
    figure = new_figure(
        "the picture of the spans", figsize=(6.5, 1.15 * layers + 0.6), layout="constrained"
    )
    axes = figure.subplots(layers, 1, squeeze=False, sharex=True)
    for (panel,), name, mask_HX in zip(axes, spans.names, spans.mask_LHX(length), strict=True):
        style_axes(panel, labelsize=8)
        for head, line in enumerate(mask_HX.tolist()):
            panel.plot(line, color=SERIES[head % len(SERIES)], linewidth=1.4)
        panel.set_ylim(-0.03, 1.05)
        panel.set_ylabel(name, fontsize=8, color=QUIET)
    axes[-1][0].set_xlabel("tokens back", fontsize=9, color=QUIET)
    title = "what of a token is let through, a line a head"
    axes[0][0].set_title(title, fontsize=10, color=INK, loc="left")
    save_figure(figure, path, dpi=120)
