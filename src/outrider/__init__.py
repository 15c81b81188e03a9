"""Outrider: train sequence-to-sequence and language models, and decode them fast."""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.runtime import load

__all__ = ["__version__", "load"]

__version__ = "0.2.0"

# GNU OpenMP, which PyTorch computes with, spins for milliseconds between two operations. Beside
# other busy processes every operation then waits for a thread that is not running. It reads this
# variable when it is loaded, so it is set before torch is imported; the user's settings win.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def __getattr__(name: str) -> Any:
    # Looked up on first use, so that `import outrider` and `outrider --help` do not wait for torch.
    if name == "load":
        from outrider.runtime import load

        return load
    raise AttributeError(f"module 'outrider' has no attribute {name!r}")
