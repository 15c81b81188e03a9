"""Which model a folder holds: a checksum that is quick to take.

It covers all that the configs say, and of every weight its name, its shape and bytes from its
beginning, middle and end. Another model, or this one trained on, has another checksum; a copy of it
has the same.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.files import file_sha256
from outrider.formats.folder import Parts, model_files

__all__ = ["identity", "weights_of"]

SAMPLE_BYTES = 256


def identity(parts: Parts) -> str:
    """Return the checksum of a model and of the decoders beside it."""
    digest = hashlib.sha256()
    for part in (parts.model, parts.drafter, parts.ctc):
        if part is None:
            digest.update(b"none")
            continue
        digest.update(repr(part.config).encode())
        for name, weight in part.weights.items():
            digest.update(f"{name} {weight.kind} {weight.shape}".encode())
            digest.update(_sample(weight.data))
            if weight.scale is not None:
                digest.update(_sample(weight.scale))
    return digest.hexdigest()


def weights_of(folder: Path) -> dict[str, str]:
    """Checksums of the weights of a model, which say exactly which model it is."""
    return {path.name: file_sha256(path) for path in model_files(folder) if path.is_file()}


def _sample(array: NDArray[Any]) -> bytes:
    raw = array.reshape(-1).view(np.uint8)
    middle = len(raw) // 2
    places = (raw[:SAMPLE_BYTES], raw[middle : middle + SAMPLE_BYTES], raw[-SAMPLE_BYTES:])
    return b"".join(place.tobytes() for place in places)
