"""Matplotlib for pictures in files: found or asked for, never needing a screen."""

from typing import Any

from outrider.errors import MissingExtraError

__all__ = ["load_pyplot"]


def load_pyplot(purpose: str) -> Any:
    """Return pyplot, or say which extra to install for `purpose`."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", purpose) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
