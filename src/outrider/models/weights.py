"""Weights of a model folder: safetensors, read only where names, shapes and number types agree."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from outrider.errors import ModelError
from outrider.files import open_regular, read_json

__all__ = ["DTYPES", "check_weights", "read_weights"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""What a model can compute in."""
FLOATS = {*DTYPES.values(), torch.float64}
"""What weights may be stored in."""
INDEX_BYTES = 64 << 20
NAME_LETTERS = 200


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read `model.safetensors`, or its shards where there is an index."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists():
        shards = read_json(index, limit=INDEX_BYTES).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(one, str) for one in shards.values()):
            raise ModelError(f"{index}: has no weight_map from names to files")
        names = sorted(set(shards.values()))
        if any(Path(name).name != name or len(name) > NAME_LETTERS for name in names):
            raise ModelError(f"{index}: a shard lies outside the folder")
    weights: dict[str, Tensor] = {}
    for name in names:
        weights |= _read_file(folder / name)
    return weights


def check_weights(
    folder: Path, weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> None:
    """Refuse weights that are not in every name, shape and kind of number those expected."""
    missing, extra = sorted(expected.keys() - weights), sorted(weights.keys() - expected)
    if missing or extra:
        word, name = ("lack", missing[0]) if missing else ("have an unknown", extra[0][:200])
        count = len(missing) + len(extra)
        raise ModelError(
            f"{folder}: the weights {word} {name!r} ({count} names differ from config.json)"
        )
    for name, like in expected.items():
        found = weights[name]
        if found.shape != like.shape:
            got, wanted = list(found.shape), list(like.shape)
            raise ModelError(f"{folder}: {name!r} has shape {got}, config.json implies {wanted}")
        accepted = FLOATS if like.is_floating_point() else {like.dtype}
        if found.dtype not in accepted:
            kinds = ", ".join(sorted(map(_name, accepted)))
            message = f"is stored as {_name(found.dtype)}, expected one of {kinds}"
            raise ModelError(f"{folder}: {name!r} {message}")


def _read_file(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        pickled = sorted(p.name for p in path.parent.glob("*.bin"))
        fix = f" (only {pickled[0]}; pickled weights are never read: convert it)" if pickled else ""
        raise ModelError(f"{path.parent}: has no {path.name}{fix}")
    open_regular(path).close()  # the library would wait for a pipe, and for a device without end
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # of the library, of the system, or of PyTorch for a strange type
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"{path}: damaged or not safetensors ({reason})") from None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
