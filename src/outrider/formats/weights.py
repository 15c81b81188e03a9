"""Weights of a model folder: safetensors, taken only where names, shapes and number types agree."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from outrider.errors import ModelError
from outrider.files import read_json
from outrider.formats.quantised import with_scales
from outrider.formats.safetensors import Weight, read_safetensors

__all__ = [
    "DTYPES",
    "FLOATS",
    "Expected",
    "check_weights",
    "read_weights",
    "weight_files",
]

DTYPES = ("float32", "bfloat16", "float16")
"""What a model can compute in."""
FLOATS = (*DTYPES, "float64")
"""What weights may be stored in."""
INDEX_BYTES = 64 << 20
NAME_LETTERS = 200


class Expected(NamedTuple):
    """What a description implies of one weight."""

    shape: tuple[int, ...]
    kinds: tuple[str, ...] = FLOATS
    """Number types it may be stored in."""


def weight_files(folder: Path) -> list[Path]:
    """Name `model.safetensors`; without it, the shards of an index. transformers does the same."""
    single = folder / "model.safetensors"
    index = folder / f"{single.name}.index.json"
    if single.exists() or not index.exists():
        return [single]
    shards = read_json(index, limit=INDEX_BYTES).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(one, str) for one in shards.values()):
        raise ModelError(f"{index}: has no weight_map from names to files")
    names = sorted(set(shards.values()))
    if any(Path(name).name != name or len(name) > NAME_LETTERS for name in names):
        raise ModelError(f"{index}: a shard lies outside the folder")
    return [folder / name for name in names]


def read_weights(folder: Path) -> dict[str, Weight]:
    """Map the weights of a folder."""
    weights: dict[str, Weight] = {}
    for path in weight_files(folder):
        found = _read_file(path)
        if twice := sorted(found.keys() & weights):
            raise ModelError(
                f"{path}: {twice[0][:200]!r} is in another shard too; keep one of them"
            )
        weights |= found
    return with_scales(folder, weights)


def check_weights(
    folder: Path, weights: Mapping[str, Weight], expected: Mapping[str, Expected]
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
        kind = found.kind if found.scale is None else "float32"  # which they stand for
        if kind not in like.kinds:
            kinds = ", ".join(sorted(like.kinds))
            message = f"is stored as {found.kind}, expected one of {kinds}"
            raise ModelError(f"{folder}: {name!r} {message}")


def _read_file(path: Path) -> dict[str, Weight]:
    if not path.exists():
        pickled = sorted(p.name for p in path.parent.glob("*.bin"))
        fix = f" (only {pickled[0]}; pickled weights are never read: convert it)" if pickled else ""
        raise ModelError(f"{path.parent}: has no {path.name}{fix}")
    return read_safetensors(path)
