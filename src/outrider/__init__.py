"""Outrider: train sequence-to-sequence and language models, and decode them fast."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.runtime import load

__all__ = ["__version__", "load"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Looked up on first use, so that `import outrider` and `outrider --help` do not wait for torch.
    if name == "load":
        from outrider.runtime import load

        return load
    raise AttributeError(f"module 'outrider' has no attribute {name!r}")
