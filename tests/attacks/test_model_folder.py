"""Damaged model folders: each gives a translation or one error message."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.helpers.forked import attack, attack_each

Copy = Callable[[Path], Path]
Dress = Callable[[Path, str, str], Path]
TEXT = "a small dog runs"
TRANSLATE = ("translate", "--max-new-tokens", "8", "--model")
"""This model generates up to the limit."""

FILES = (
    *("config.json", "model.safetensors", "generation_config.json"),
    *("tokenizer.json", "tokenizer_config.json"),
    *("drafter/config.json", "drafter/model.safetensors", "ctc/config.json"),
    *("ctc/model.safetensors",),
)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _flip(raw: bytes, place: int) -> bytes:
    return raw[:place] + bytes([raw[place] ^ 0x10]) + raw[place + 1 :]


REPLACEMENTS: dict[str, Callable[[Path, bytes], object]] = {
    "missing": lambda path, raw: None,
    "empty": lambda path, raw: path.touch(),
    "half": lambda path, raw: path.write_bytes(raw[: len(raw) // 2]),
    "twice": lambda path, raw: path.write_bytes(raw + raw),
    "noise": lambda path, raw: path.write_bytes(bytes(range(256)) * 40),
    "zeros": lambda path, raw: path.write_bytes(bytes(len(raw))),
    "list": lambda path, raw: path.write_bytes(b"[]"),
    "null": lambda path, raw: path.write_bytes(b"null"),
    "object": lambda path, raw: path.write_bytes(b"{}"),
    "deep": lambda path, raw: path.write_bytes(b"[" * 100_000),
    "deep object": lambda path, raw: path.write_bytes(b'{"a":' * 900 + b"1" + b"}" * 900),
    "utf-16": lambda path, raw: path.write_bytes(raw.decode("latin-1").encode("utf-16")),
    "surrogates": lambda path, raw: path.write_bytes(b'{"\\ud800": "\\udfff"}'),
    "folder": lambda path, raw: path.mkdir(),
    "fifo": lambda path, raw: _fifo(path),
    "endless": lambda path, raw: path.symlink_to("/dev/zero"),
    "terminal": lambda path, raw: path.symlink_to("/dev/tty"),
    "loop": lambda path, raw: path.symlink_to(path.name),
    "dangling": lambda path, raw: path.symlink_to("nowhere"),
    "sparse": lambda path, raw: (path.touch(), os.truncate(path, 40 << 30)),
    "flipped head": lambda path, raw: path.write_bytes(_flip(raw, 3)),
    "flipped middle": lambda path, raw: path.write_bytes(_flip(raw, len(raw) // 2)),
}


@pytest.mark.parametrize("name", FILES)
def test_a_replaced_file(dress: Dress, translator: Path, tmp_path: Path, name: str) -> None:
    raw = (translator / name).read_bytes()
    models = {kind: dress(translator, name, "") for kind in REPLACEMENTS}
    for kind, model in models.items():
        (model / name).unlink()
        REPLACEMENTS[kind](model / name, raw)
    mode = "parallel" if name.startswith("ctc") else "tandem"
    lines = [(*TRANSLATE, model, "--mode", mode, TEXT) for model in models.values()]
    outcomes = dict(zip(models, attack_each(lines, tmp_path), strict=True))
    if name == "config.json":
        for kind in REPLACEMENTS.keys() - {"flipped head", "flipped middle"}:
            assert outcomes[kind].code == 2, f"{kind}: without its config it is no model"


WRONG: tuple[Any, ...] = (*(None, [], "x", -1, 1.5, 10**9, float("nan"), {"kind": "nothing"}),)


SEQ2SEQ_KEYS = (
    *("activation", "activation_dropout", "architectures", "attention_dropout", "bos_token_id"),
    *("decoder_attention", "decoder_layers", "decoder_start_token_id", "dropout", "dtype"),
    *("encoder_attention", "encoder_layers", "eos_token_id", "gated", "hidden_size"),
    *("intermediate_size", "is_encoder_decoder", "logits_bias", "max_positions", "model_type"),
    *("norm", "num_attention_heads", "num_key_value_heads", "pad_token_id", "position"),
    *("scale_embedding", "share_embeddings", "tie_word_embeddings", "transformers_version"),
    *("vocab_size", "auto_map", "trust_remote_code", "quantization_config"),
)


@pytest.mark.parametrize("key", SEQ2SEQ_KEYS)
def test_wrong_values_in_the_config(
    dress: Dress, translator: Path, tmp_path: Path, key: str
) -> None:
    config = json.loads((translator / "config.json").read_text())
    changed = [json.dumps({**config, key: value}) for value in WRONG]
    models = [dress(translator, "config.json", text) for text in changed]
    attack_each([(*TRANSLATE, model, TEXT) for model in models], tmp_path)


@pytest.mark.parametrize("part", ["drafter", "ctc"])
def test_wrong_values_in_the_config_of_a_part(
    dress: Dress, translator: Path, tmp_path: Path, part: str
) -> None:
    name = f"{part}/config.json"
    config = json.loads((translator / name).read_text())
    mode = "parallel" if part == "ctc" else "tandem"
    wrong = (None, -1, 10**9)
    changed = [json.dumps({**config, key: value}) for key in config for value in wrong]
    models = [dress(translator, name, text) for text in changed]
    attack_each([(*TRANSLATE, model, "--mode", mode, TEXT) for model in models], tmp_path)


def safetensors(tensors: dict[str, tuple[str, list[int]]], data: bytes) -> bytes:
    """Build a safetensors file: every tensor refers to the same bytes."""
    header = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}
        for name, (dtype, shape) in tensors.items()
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


HEADERS = {
    "no header": struct.pack("<Q", 2) + b"{}",
    "long header": struct.pack("<Q", 1 << 60) + b"{}",
    "list header": struct.pack("<Q", 2) + b"[]",
    "huge shape": safetensors({"x": ("F32", [1 << 40])}, bytes(4)),
    "overflow": safetensors({"x": ("F32", [1 << 62, 1 << 62])}, bytes(4)),
    "negative": safetensors({"x": ("F32", [-1])}, bytes(4)),
    "strange type": safetensors({"x": ("Q4", [1])}, bytes(4)),
    "overlap": safetensors({"x": ("F32", [1]), "y": ("F32", [1])}, bytes(4)),
    "nothing": safetensors({}, b""),
}


@pytest.mark.parametrize("header", HEADERS)
def test_weights_with_an_invalid_header(
    copy: Copy, translator: Path, tmp_path: Path, header: str
) -> None:
    model = copy(translator)
    (model / "model.safetensors").write_bytes(HEADERS[header])
    assert attack(*TRANSLATE, model, TEXT, folder=tmp_path).code == 2


TYPES = {
    **{"I64": torch.int64, "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8},
    **{"BOOL": torch.bool, "F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16},
}


@pytest.mark.parametrize("part", [".", "drafter", "ctc"])
def test_weights_of_another_type(dress: Dress, translator: Path, tmp_path: Path, part: str) -> None:
    """Floating point of any width is converted; any other type is refused."""
    name = str(Path(part) / "model.safetensors")
    models = {dtype: dress(translator, name, "") for dtype in TYPES}
    for dtype, model in models.items():
        tensors = load_file(translator / name)
        for key, tensor in tensors.items():
            if tensor.is_floating_point():  # counters and tables of ids are integers
                tensors[key] = tensor.to(TYPES[dtype])
        save_file(tensors, model / name)
    mode = {".": "ar", "drafter": "tandem", "ctc": "parallel"}[part]
    lines = [(*TRANSLATE, model, "--mode", mode, TEXT) for model in models.values()]
    for dtype, outcome in zip(models, attack_each(lines, tmp_path), strict=True):
        assert outcome.code == (0 if "F" in dtype else 2), f"{dtype}: {outcome.err}"


@pytest.mark.parametrize("fill", ["nan", "inf", "-inf", "1e38", "0"])
def test_weights_of_extreme_values(
    dress: Dress, translator: Path, tmp_path: Path, fill: str
) -> None:
    model = dress(translator, "model.safetensors", "")
    tensors = load_file(translator / "model.safetensors")
    save_file({n: t.fill_(float(fill)) for n, t in tensors.items()}, model / "model.safetensors")
    ways = [("--mode", mode) for mode in ("ar", "tandem", "parallel")]
    ways += [("--strategy", strategy) for strategy in ("sample", "beam")]
    attack_each([(*TRANSLATE, model, *way, TEXT) for way in ways], tmp_path)


INDEXES = {
    "empty": {},
    "no map": {"weight_map": None},
    "list": {"weight_map": [1]},
    "outside": {"weight_map": {"x": "../../secret.safetensors"}},
    "absolute": {"weight_map": {"x": "/etc/passwd"}},
    "number": {"weight_map": {"x": 3}},
    "nowhere": {"weight_map": {"x": "gone.safetensors"}},
    "folder": {"weight_map": {"x": "drafter"}},
    "long name": {"weight_map": {"x": "x" * 5000}},
    "nul": {"weight_map": {"x": "a\0b"}},
}


@pytest.mark.parametrize("index", INDEXES)
def test_an_index_of_shards(copy: Copy, translator: Path, tmp_path: Path, index: str) -> None:
    model = copy(translator)
    (model / "model.safetensors").unlink()  # it takes precedence over an index
    (model / "model.safetensors.index.json").write_text(json.dumps(INDEXES[index]))
    assert attack(*TRANSLATE, model, TEXT, folder=tmp_path).code == 2


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("replacement", ["half", "noise", "sparse", "fifo", "flipped middle"])
def test_damaged_weights_on_both_backends(
    copy: Copy, translator: Path, tmp_path: Path, backend: str, replacement: str
) -> None:
    if backend == "native":
        pytest.importorskip("outrider_native")
    model = copy(translator)
    path = model / "model.safetensors"
    raw = path.read_bytes()
    path.unlink()
    REPLACEMENTS[replacement](path, raw)
    attack(*TRANSLATE, model, "--backend", backend, TEXT, folder=tmp_path)
