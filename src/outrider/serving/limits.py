"""What a server takes on: every size that a stranger can choose has a bound.

What a long-lived process asks of the allocator: that memory which is free goes back.
"""

import ctypes
import os
import sys
from dataclasses import dataclass

__all__ = ["Limits", "give_memory_back"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of one server; the defaults suit a model of a hundred million weights on a CPU."""

    rows: int = 64
    """Rows that a model decodes at once, every beam counted."""
    batch_tokens: int = 16_384
    """Tokens that those rows may hold together: sources, prompts and what may be written."""
    queue_tokens: int = 1 << 20
    """The same for everybody who has been let in to one model and is not done."""
    characters: int = 100_000
    """Characters of all texts of one request."""
    texts: int = 2_048
    """Texts of one request."""
    preparing: int = 4_000_000
    """Characters of all requests whose texts are being taken apart."""
    new_tokens: int = 4_096
    """Most tokens that a piece of a text may be asked to become."""
    rows_each: int = 16
    """Beams or candidates of one piece of a text."""
    seconds: float = 60.0
    """A request that takes longer is given up."""
    body: int = 2 << 20
    """Bytes of a request's body."""
    body_seconds: float = 15.0
    """A client that takes longer to send its request is hung up on."""
    connections: int = 1_024
    """Connections at once; further ones are answered 503."""


MMAP_THRESHOLD = -3
"""`M_MMAP_THRESHOLD` of glibc's `mallopt`: from so many bytes on, memory comes from the system."""
BYTES = 128 << 10


def give_memory_back() -> bool:
    """Keep glibc from hoarding the memory of decoding states, which come in all sizes.

    Its threshold rises to that of the largest one freed, up to 32 MiB; then states lie scattered in
    a heap that only grows: with OPUS-MT and 64 rows to twice the size. Elsewhere this does nothing.
    """
    if not sys.platform.startswith("linux") or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return bool(mallopt(MMAP_THRESHOLD, BYTES))
