"""Write a `model.bin` of CTranslate2 without its library."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}
NORMS = {"weight": "gamma", "bias": "beta"}
PARTS = {
    "attention.qkv": "self_attention/linear_0",
    "attention.out": "self_attention/linear_1",
    "attention_residual.norm": "self_attention/layer_norm",
    "cross.q": "attention/linear_0",
    "cross.kv": "attention/linear_1",
    "cross.out": "attention/linear_2",
    "cross_residual.norm": "attention/layer_norm",
    "feedforward.up": "ffn/linear_0",
    "feedforward.down": "ffn/linear_1",
    "feedforward_residual.norm": "ffn/layer_norm",
}


def write(
    folder: Path,
    arrays: Mapping[str, NDArray[Any]],
    config: Mapping[str, Any],
    *,
    heads: int,
    source: list[str],
    target: list[str],
    pre_norm: bool = True,
) -> Path:
    """Write weights under our names as a CTranslate2 model with int8 matrices."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for side, words in (("source", source), ("target", target)):
        name = folder / f"{side}_vocabulary.json"
        name.write_text(json.dumps(words, ensure_ascii=False), encoding="utf-8")
    variables: dict[str, NDArray[Any]] = {}
    for side in ("encoder", "decoder"):
        variables[f"{side}/num_heads"] = np.array(heads, np.int16)
        variables[f"{side}/pre_norm"] = np.array(pre_norm, np.int8)
        variables[f"{side}/activation"] = np.array(0, np.int8)
        variables[f"{side}/scale_embeddings"] = np.array(1, np.int8)
    for name, array in arrays.items():
        variables |= quantised(translated(name), array)
    write_binary(folder / "model.bin", variables)
    return folder


def translated(name: str) -> str:
    """Return CTranslate2's name of one of our weights."""
    tables = {
        "tokens.weight": "decoder/embeddings/weight",
        "head.weight": "decoder/projection/weight",
        "logits_bias": "decoder/projection/bias",
        "source_tokens.weight": "encoder/embeddings_0/weight",
        "encoder_position.table.weight": "encoder/position_encodings/encodings",
        "decoder_position.table.weight": "decoder/position_encodings/encodings",
    }
    if name in tables:
        return tables[name]
    stem, _, leaf = name.rpartition(".")
    if stem.endswith(".norm") and ".blocks." not in stem:
        return f"{stem.removesuffix('.norm')}/layer_norm/{NORMS[leaf]}"
    side, _, layer, part = stem.split(".", 3)
    leaf = NORMS[leaf] if part.endswith(".norm") else leaf
    return f"{side}/layer_{layer}/{PARTS[part]}/{leaf}"


def quantised(name: str, array: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return a matrix as int8 with the scale of each row; other arrays unchanged."""
    if array.ndim != 2 or "position_encodings" in name:
        return {name: array}
    scale = (127 / np.abs(array).max(1)).astype(np.float32)
    return {name: np.rint(array * scale[:, None]).astype(np.int8), f"{name}_scale": scale}


def write_binary(path: Path, variables: Mapping[str, NDArray[Any]]) -> None:
    """Write format 6, without aliases."""
    raw = [struct.pack("<I", 6), text("TransformerSpec"), struct.pack("<II", 7, len(variables))]
    for name, array in variables.items():
        raw += [
            text(name),
            struct.pack("<B", array.ndim),
            *(struct.pack("<I", n) for n in array.shape),
        ]
        raw += [struct.pack("<BI", KINDS[array.dtype.name], array.nbytes), array.tobytes()]
    path.write_bytes(b"".join([*raw, struct.pack("<I", 0)]))


def text(name: str) -> bytes:
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"
