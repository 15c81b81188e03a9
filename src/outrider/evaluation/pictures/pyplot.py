"""Matplotlib for pictures in files: found or asked for, never needing a screen."""

from io import BytesIO
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, MissingExtraError, nearest
from outrider.files import write_bytes

__all__ = ["load_pyplot", "save_figure"]


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
