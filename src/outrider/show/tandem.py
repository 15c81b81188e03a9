"""A tandem decoding: a line of tokens per round, coloured by kind.

Coordinates are points from the top left, so that a long text gives a taller picture with letters of
the same size.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from outrider.show.palette import EMPTY, GREEN, GRID, INK, QUIET, TOKENS, new_figure, save_figure
from outrider.show.tandem_trace import KINDS, Kind, Span, Trace

WIDTH, MARGIN, INDENT = 760.0, 28.0, 34.0
LETTER, CHIP, LINE, GAP = 11.0, 19.0, 25.0, 4.0

Measure = Callable[[str], float]
"""Returns the width of a text in points, at the size of the tokens."""


class Chip(NamedTuple):
    """A token on its coloured background, and its position."""

    label: str
    kind: Kind
    x: float
    y: float
    width: float


def draw_tandem(trace: Trace, path: Path) -> None:
    """Draw a tandem decoding."""
    figure = new_figure("the picture of a tandem decoding", dpi=150, facecolor="white")
    page = _Page(figure)
    page.heading("source", trace.source)
    page.heading("tandem", trace.text)
    page.legend(trace.kinds)
    for number, spans in enumerate(trace.rounds, start=1):
        page.round(number, spans)
    page.figures(trace)
    page.save(path)


class _Page:
    """Draws from top to bottom; `y` is the current height."""

    def __init__(self, figure: Any) -> None:
        self.figure = figure
        self.axes = figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.y = MARGIN
        self._renderer = figure.canvas.get_renderer()

    def width(self, text: str, size: float = LETTER) -> float:
        """Return the width of a text in points."""
        from matplotlib.font_manager import FontProperties

        font = FontProperties(size=size)
        pixels = self._renderer.get_text_width_height_descent(text, font, ismath=False)[0]
        return float(pixels * 72 / self.figure.dpi)

    def write(self, x: float, y: float, text: str, **style: Any) -> None:
        """Write a text centred at height y, without parsing math."""
        style = {"size": LETTER, "color": INK, "va": "center_baseline", **style}
        self.axes.text(x, y, text, parse_math=False, **style)

    def heading(self, name: str, text: str) -> None:
        """Write a text, wrapped to the page width."""
        left = MARGIN + 54
        lines = _wrap(text, self.width, WIDTH - MARGIN - left)
        self.write(MARGIN, self.y + LINE / 2, name, color=QUIET, size=9)
        for line in lines:
            self.write(left, self.y + LINE / 2, line)
            self.y += 18
        self.y += 8

    def legend(self, kinds: Sequence[Kind]) -> None:
        """Draw the legend."""
        self.y += 6
        x = MARGIN
        for kind in kinds:
            self.chip(Chip("", kind, x, self.y + (LINE - 11) / 2, 11), height=11)
            self.write(x + 17, self.y + LINE / 2, KINDS[kind], color=QUIET, size=9)
            x += 17 + self.width(KINDS[kind], 9) + 18
        self.y += LINE + 4
        self.axes.plot([MARGIN, WIDTH - MARGIN], [self.y, self.y], color=GRID, linewidth=1)
        self.y += 8

    def round(self, number: int, spans: Sequence[Span]) -> None:
        """Draw one round."""
        at = self.y + CHIP / 2
        self.write(MARGIN + 16, at, str(number), color=QUIET, size=9, ha="right")
        chips, self.y = _place(spans, self.y, self.width)
        for chip in chips:
            self.chip(chip)

    def chip(self, chip: Chip, *, height: float = CHIP) -> None:
        """Draw a token; a refused one is struck through."""
        from matplotlib.patches import FancyBboxPatch

        ground, ink = TOKENS[chip.kind]
        box = FancyBboxPatch(
            (chip.x, chip.y),
            chip.width,
            height,
            boxstyle="round,pad=0,rounding_size=3.5",
            facecolor=ground,
            edgecolor="none",
        )
        self.axes.add_patch(box)
        middle, centre = chip.x + chip.width / 2, chip.y + height / 2
        bold = "bold" if chip.kind == "correction" else "normal"
        self.write(middle, centre, chip.label, color=ink, ha="center", weight=bold)
        if chip.kind == "refused" and chip.label:
            ends = [chip.x + 3, chip.x + chip.width - 3]
            self.axes.plot(ends, [centre, centre], color=ink, linewidth=1.1)

    def figures(self, trace: Trace) -> None:
        """Write the totals, and a bar for each position of a draft."""
        self.y += 10
        self.axes.plot([MARGIN, WIDTH - MARGIN], [self.y, self.y], color=GRID, linewidth=1)
        self.y += 10
        self.write(MARGIN, self.y + LINE / 2, trace.summary, weight="bold")
        self.y += LINE
        shares = trace.statistics.acceptance_by_position
        if not shares:
            return
        label = "share of the drafts that held up to place"
        self.write(MARGIN, self.y + LINE / 2, label, color=QUIET, size=9)
        self.y += LINE + 8
        step = min(58.0, (WIDTH - 2 * MARGIN) / len(shares))
        for place, share in enumerate(shares):
            self._bar(MARGIN + place * step, step, share, place + 1)
        self.y += 72

    def _bar(self, x: float, step: float, share: float, place: int) -> None:
        from matplotlib.patches import Rectangle

        high, wide = 48.0, step - 10
        filled, middle = high * share, x + wide / 2
        top = self.y + high - filled
        self.axes.add_patch(Rectangle((x, self.y), wide, high, facecolor=EMPTY))
        self.axes.add_patch(Rectangle((x, top), wide, filled, facecolor=GREEN))
        inside = share > 0.4
        height, colour = (top + 10, "white") if inside else (top - 8, TOKENS["accepted"][1])
        self.write(middle, height, f"{share:.0%}", size=8.5, ha="center", color=colour)
        self.write(middle, self.y + high + 12, str(place), size=9, ha="center", color=QUIET)

    def save(self, path: Path) -> None:
        """Set the height of the picture and write it."""
        height = self.y + MARGIN
        self.axes.set_xlim(0, WIDTH)
        self.axes.set_ylim(height, 0)
        self.figure.set_size_inches(WIDTH / 72, height / 72)
        save_figure(self.figure, path, facecolor="white")


def _place(spans: Sequence[Span], y: float, width: Measure) -> tuple[list[Chip], float]:
    """Lay out chips with line breaks; return them and the height of the next line."""
    left = MARGIN + INDENT
    chips, x = [], left
    for span in spans:
        # Separate a word that starts with a space from the word before it.
        if x > left:
            x += GAP + (3 if span.ends or span.text[:1].isspace() else 0)
        label = span.label
        wide = width(label) + 10
        if x + wide > WIDTH - MARGIN and x > left:
            x, y = left, y + CHIP + 3
        chips.append(Chip(label, span.kind, x, y, wide))
        x += wide
    return chips, y + LINE


def _wrap(text: str, width: Measure, limit: float) -> list[str]:
    """Break a text into lines of at most `limit` points; longer words are cut."""
    lines = [""]
    for word in " ".join(text.split()).split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if width(longer) <= limit:
            lines[-1] = longer
            continue
        lines.append(word)
        while width(lines[-1]) > limit:
            share = max(1, int(len(lines[-1]) * limit / width(lines[-1])))
            lines[-1:] = [lines[-1][:share], lines[-1][share:]]
    return [line for line in lines if line] or [""]
