"""`load` returns a `Translator` or a `Generator`."""

from typing import TYPE_CHECKING, Any

from outrider.runtime.load import load
from outrider.runtime.result import Result
from outrider.runtime.translator import Translator

if TYPE_CHECKING:
    from outrider.runtime.generator import Generator

__all__ = ["Generator", "Result", "Translator", "load"]


def __getattr__(name: str) -> Any:
    if name == "Generator":  # imported on first use: most commands translate
        from outrider.runtime.generator import Generator

        return Generator
    raise AttributeError(f"module 'outrider.runtime' has no attribute {name!r}")
