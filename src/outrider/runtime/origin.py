"""Where a figure comes from: the model's weights, the files, and the versions that made it."""

from pathlib import Path
from typing import Any

from outrider.files import file_sha256
from outrider.formats.folder import model_files
from outrider.runtime.provenance import machine, versions

__all__ = ["origin"]

_SIDE_DECODERS = ("drafter/model.safetensors", "ctc/model.safetensors")


def origin(folder: Path, **files: Path | None) -> dict[str, Any]:
    """Name the model and the files and take their checksums; None for a file not given."""
    found = {str(path.relative_to(folder)): path for path in model_files(folder)}
    found |= {name: folder / name for name in _SIDE_DECODERS}
    weights = {name: path for name, path in found.items() if path.is_file()}
    return {
        "model": "/".join(folder.resolve().parts[-2:]),
        "weights_sha256": {name: file_sha256(path) for name, path in weights.items()},
        "data": {
            name: {"file": path.name, "sha256": file_sha256(path)}
            for name, path in files.items()
            if path is not None
        },
        "machine": machine(),
        "versions": versions(),
    }
