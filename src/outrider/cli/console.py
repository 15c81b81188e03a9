"""The one console of all commands, and how they end on Ctrl-C.

Rich takes `[plot]` in a text for markup and drops it; messages, paths and tokens have brackets too,
so the console prints text as it is.
"""

from typing import TYPE_CHECKING, Any

from outrider.errors import OutriderError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["StoppedError", "new_console"]


class StoppedError(OutriderError):
    """Ctrl-C stopped a command; the message says what is kept. The exit code is 130."""


def new_console(**options: Any) -> "Console":
    """Make a console that takes brackets literally; imports Rich only when called."""
    from rich.console import Console

    return Console(markup=False, **options)
