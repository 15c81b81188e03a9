"""Pack a model for the native core once, for every start after that."""

from pathlib import Path

from outrider.backends.native import NativeBackend
from outrider.backends.packed import PackedWeights
from outrider.files.hub import model_folder
from outrider.formats.folder import read_parts

__all__ = ["export_native"]


def export_native(model: str | Path) -> Path:
    """Write the packed int8 weights beside a model; `load` finds them there."""
    parts = read_parts(model_folder(model))
    packed = PackedWeights(parts)
    return packed.write(NativeBackend(parts, threads=1).core)
