"""The one console of all commands: it prints text as it is.

Rich takes `[plot]` in a text for markup and drops it; messages, paths and tokens have brackets too.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["new_console"]


def new_console(**options: Any) -> "Console":
    """Make a console that takes brackets literally; imports Rich only when called."""
    from rich.console import Console

    return Console(markup=False, **options)
