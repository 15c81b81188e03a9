"""What to lower when decoding takes more memory than there is."""

from contextlib import AbstractContextManager

from outrider.decoding.settings import DecodeSettings
from outrider.errors import within_memory

__all__ = ["enough_memory"]


def enough_memory(config: DecodeSettings, *, rows: int) -> AbstractContextManager[None]:
    """Turn running out of memory into a `ResourceError` that names what takes it."""
    what = "1 row" if rows == 1 else f"{rows} rows"
    return within_memory(f"decoding {what} at once", f"lower {' or '.join(_levers(config, rows))}")


def _levers(config: DecodeSettings, rows: int) -> list[str]:
    """Name what takes memory, the dearest first."""
    found = ["batch_tokens"] if rows > 1 else []
    if config.strategy == "beam" and config.beams > 1:
        found.append(f"beams ({config.beams})")
    if config.candidates > 1:
        found.append(f"candidates ({config.candidates})")
    tokens = config.max_new_tokens
    return [*found, "max_new_tokens" if tokens is None else f"max_new_tokens ({tokens})"]
