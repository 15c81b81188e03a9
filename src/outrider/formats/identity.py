"""Which weights a folder holds."""

from pathlib import Path

from outrider.files import file_sha256
from outrider.formats.folder import model_files

__all__ = ["weights_of"]


def weights_of(folder: Path) -> dict[str, str]:
    """Checksums of the weights of a model, which say exactly which model it is."""
    return {path.name: file_sha256(path) for path in model_files(folder) if path.is_file()}
