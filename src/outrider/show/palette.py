"""Colours of pictures and pages, and helpers for Matplotlib without a display."""

from io import BytesIO
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, MissingExtraError, nearest
from outrider.files import write_bytes

INK, QUIET, GRID, FAINT = "#1f2933", "#7b8794", "#e4e7eb", "#cbd2d9"
"""Text, secondary text, thin lines, and curves in the background."""
TEAL, ORANGE, INDIGO, OCHRE = "#0b8a7a", "#c65d21", "#4a5fc1", "#b08900"
GREEN = "#2a9d8f"
"""Bars and filled cells."""
EMPTY = "#f3f6f7"
"""An empty cell."""
SERIES = (
    *(TEAL, ORANGE, INDIGO, OCHRE, "#8a3b8f", "#2f7fb8", "#6a8f1f", "#c23b5a"),
    *("#5c6f7f", "#7a5230"),
)
"""Lines of one picture, in this order."""
HEAT = ("#f6f8f9", "#bfe5de", GREEN, "#0b5c52", "#04231f")
"""Attention weights, from 0 to 1."""
SIMILARITY = ("#f6f8f9", "#c5cdf2", INDIGO, "#1f2c6e")
"""Similarity of heads, from 0 to 1."""
TOKENS = {
    "accepted": ("#d3f0ea", "#0b5c52"),
    "refused": ("#fbe3dc", "#a63d1f"),
    "dropped": ("#f3f4f6", "#9aa5b1"),
    "correction": ("#fdedc8", "#7a4d00"),
    "bonus": ("#dfe6fb", "#2c3e9e"),
    "plain": ("#eceff2", "#3e4c59"),
}
"""Background and text colour of a token in tandem decoding, by its kind."""

_DARK_TOKENS = {
    "accepted": ("#12413b", "#8be3d3"),
    "refused": ("#4a2118", "#ffa88f"),
    "dropped": ("#20272e", "#66727f"),
    "correction": ("#4a3709", "#ffd98a"),
    "bonus": ("#262f5e", "#b4c2ff"),
    "plain": ("#2b333c", "#c3ccd5"),
}
_PAGE = {
    "ground": ("#fbfbfa", "#12161b"),
    "card": ("#ffffff", "#1a2027"),
    "ink": (INK, "#e6eaee"),
    "quiet": (QUIET, "#8b97a5"),
    "rule": (GRID, "#2b333c"),
    "mark": ("#e0a21b", "#e0a21b"),
    "bonus-line": ("#5b74e8", "#5b74e8"),
    "empty": (EMPTY, "#20272e"),
    "low": (HEAT[1], "#16524a"),
    "mid": (HEAT[2], "#2fb3a3"),
    "high": ("#06352f", "#c9fff5"),
    "alike-empty": ("#f3f4fb", "#20242e"),
    "alike": ("#2f43a8", "#9fb0ff"),
}
"""Colours of a page, light and dark."""


def rgb(colour: str) -> tuple[float, float, float]:
    """Return red, green and blue of `#rrggbb`, each from 0 to 1."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def css_variables() -> str:
    """Return the colours as CSS variables for the light and dark theme."""
    light = {name: pair[0] for name, pair in _PAGE.items()} | _flat(TOKENS)
    dark = {name: pair[1] for name, pair in _PAGE.items()} | _flat(_DARK_TOKENS)
    return (
        f":root {{ color-scheme: light dark; {_declare(light)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_declare(dark)} }} }}\n"
    )


def _flat(tokens: dict[str, tuple[str, str]]) -> dict[str, str]:
    grounds = {kind: ground for kind, (ground, _) in tokens.items()}
    return grounds | {f"{kind}-ink": ink for kind, (_, ink) in tokens.items()}


def _declare(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def load_pyplot(purpose: str) -> Any:
    """Return pyplot, or raise an error that names the extra for `purpose`."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", purpose) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def new_figure(purpose: str, **options: Any) -> Any:
    """Return a figure that no window shows and that need not be closed."""
    figure = load_pyplot(purpose).matplotlib.figure.Figure(**options)
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    """Write a figure atomically, in the format of the file extension."""
    kind, supported = path.suffix.lower()[1:] or "png", figure.canvas.get_supported_filetypes()
    if kind not in supported:
        expected = ", ".join(sorted(supported))
        raise ConfigError(str(path), f"unknown file format{nearest(kind, supported)}: {expected}")
    picture = BytesIO()
    figure.savefig(picture, format=kind, **options)
    write_bytes(path, picture.getvalue())


def style_axes(axes: Any, **ticks: Any) -> None:
    """Draw a thin grid and no frame; `ticks` go to `tick_params`."""
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=INK, length=0, **ticks)
