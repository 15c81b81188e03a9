"""Model folders of random weights, written without PyTorch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.formats.layout import model_layout
from outrider.formats.spec import ModelSpec

DEMO = Path(__file__).resolve().parents[2] / "demo" / "en-de"
WORDS: int = json.loads((DEMO / "config.json").read_text(encoding="utf-8"))["vocab_size"]


def save(folder: Path, config: ModelSpec) -> Path:
    """Write a model that reads and writes with the demo's tokenizer."""
    shapes = {name: one.shape for name, one in model_layout(config).items()}
    values = {"model_type": config.model_type, **vars(config)}
    return write(folder, values, random_arrays(shapes))


def write(folder: Path, values: dict[str, Any], arrays: dict[str, NDArray[np.float32]]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    write_safetensors(folder / "model.safetensors", arrays)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((DEMO / name).read_bytes())
    return folder


def write_safetensors(path: Path, arrays: dict[str, NDArray[np.float32]]) -> None:
    header, place = {}, 0
    for name, array in arrays.items():
        end = place + array.nbytes
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    raw = b"".join(array.tobytes() for array in arrays.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw)


def random_arrays(shapes: dict[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    dice = np.random.default_rng(0)
    return {
        name: dice.standard_normal(shape, np.float32) * np.float32(0.4)
        for name, shape in shapes.items()
    }
