"""Weights of a model folder: safetensors with the expected names, shapes and number types."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from outrider.errors import ModelError
from outrider.files import read_json
from outrider.formats.quantised import with_scales
from outrider.formats.safetensors import Weight, read_safetensors

DTYPES = ("float32", "bfloat16", "float16")
"""Number types of computation."""
FLOATS = (*DTYPES, "float64")
"""Number types of stored weights."""
INDEX_BYTES = 64 << 20
NAME_LENGTH = 200


class Expected(NamedTuple):
    """The expected shape and number types of a weight."""

    shape: tuple[int, ...]
    kinds: tuple[str, ...] = FLOATS


def weight_files(folder: Path) -> list[Path]:
    """Return `model.safetensors`, or else the shards of its index, as transformers does."""
    single = folder / "model.safetensors"
    index = folder / f"{single.name}.index.json"
    if single.exists() or not index.exists():
        return [single]
    shards = read_json(index, limit=INDEX_BYTES).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ModelError(f"{index}: has no weight_map from names to files")
    names = sorted(set(shards.values()))
    if any(Path(name).name != name or len(name) > NAME_LENGTH for name in names):
        raise ModelError(f"{index}: a shard is outside of the folder")
    return [folder / name for name in names]


def read_weights(folder: Path, files: Sequence[Path] | None = None) -> dict[str, Weight]:
    """Map the weights of a folder, by default those of `weight_files`."""
    weights: dict[str, Weight] = {}
    for path in weight_files(folder) if files is None else files:
        shard = _read_file(path)
        if repeated := sorted(shard.keys() & weights):
            name = repeated[0][:NAME_LENGTH]
            raise ModelError(f"{path}: {name!r} is in another shard too; keep one of them")
        weights |= shard
    return with_scales(folder, weights)


def check_weights(
    folder: Path, weights: Mapping[str, Weight], expected: Mapping[str, Expected]
) -> None:
    """Refuse weights with other names, shapes or number types than expected."""
    missing, extra = sorted(expected.keys() - weights), sorted(weights.keys() - expected)
    if missing or extra:
        verb, name = ("lack", missing[0]) if missing else ("have an unknown", extra[0])
        count, name = len(missing) + len(extra), name[:NAME_LENGTH]
        raise ModelError(
            f"{folder}: the weights {verb} {name!r} ({count} names differ from config.json)"
        )
    for name, (shape, kinds) in expected.items():
        weight = weights[name]
        if weight.shape != shape:
            shapes = f"{list(weight.shape)}, config.json implies {list(shape)}"
            raise ModelError(f"{folder}: {name!r} has shape {shapes}")
        kind = weight.kind if weight.scale is None else "float32"
        if kind not in kinds:
            message = f"is stored as {weight.kind}, expected one of {', '.join(sorted(kinds))}"
            raise ModelError(f"{folder}: {name!r} {message}")


def _read_file(path: Path) -> dict[str, Weight]:
    if not path.exists():
        pickled = sorted(p.name for p in path.parent.glob("*.bin"))
        fix = f" (only {pickled[0]}; pickled weights are never read: convert it)" if pickled else ""
        raise ModelError(f"{path.parent}: has no {path.name}{fix}")
    return read_safetensors(path)
