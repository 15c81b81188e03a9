"""The objects a user holds: `load` gives a `Translator` or a `Generator`."""

from outrider.runtime.generator import Generator
from outrider.runtime.load import load
from outrider.runtime.result import Result
from outrider.runtime.translator import Translator

__all__ = ["Generator", "Result", "Translator", "load"]
