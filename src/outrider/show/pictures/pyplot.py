"""Matplotlib for pictures in files; it never needs a screen."""

from io import BytesIO
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, MissingExtraError, nearest
from outrider.files import write_bytes
from outrider.show.palette import GRID, INK

__all__ = ["load_pyplot", "save_figure", "style_axes"]


def load_pyplot(purpose: str) -> Any:
    """Return pyplot, or say which extra to install for `purpose`."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", purpose) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    """Write a figure, whole or not at all, in the format that the name ends with."""
    kind, known = path.suffix.lower()[1:] or "png", figure.canvas.get_supported_filetypes()
    if kind not in known:
        expected = ", ".join(sorted(known))
        raise ConfigError(str(path), f"unknown kind of picture{nearest(kind, known)}: {expected}")
    picture = BytesIO()
    figure.savefig(picture, format=kind, **options)
    write_bytes(path, picture.getvalue())


def style_axes(axes: Any, **ticks: Any) -> None:
    """Draw a thin grid and no frame; `ticks` go to `tick_params`."""
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=INK, length=0, **ticks)
