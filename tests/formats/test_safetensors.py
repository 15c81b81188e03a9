"""The safetensors reader on files of the library and on invalid files."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import save_file

from outrider.errors import ModelError
from outrider.formats.readers.weights import stack
from outrider.formats.safetensors import Weight, read_safetensors

KINDS = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"]
shapes = st.lists(st.integers(0, 4), max_size=3)
files = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(
        lambda name: name != "__metadata__"
    ),
    st.tuples(st.sampled_from(KINDS), shapes),
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(files, st.integers(0, 2**31))
def test_files_of_the_library_are_read(tmp_path_factory: Any, tensors: Any, seed: int) -> None:
    dice = torch.Generator().manual_seed(seed)
    written = {
        name: torch.randint(0, 100, shape, generator=dice).to(getattr(torch, kind))
        for name, (kind, shape) in tensors.items()
    }
    path = tmp_path_factory.mktemp("file") / "model.safetensors"
    save_file(written, path, metadata={"format": "pt"})
    found = read_safetensors(path)
    assert found.keys() == written.keys()
    for name, tensor in written.items():
        assert found[name].kind == str(tensor.dtype).removeprefix("torch.")
        assert found[name].shape == tuple(tensor.shape)
        if tensor.is_floating_point():
            assert np.array_equal(found[name].as_float32(), tensor.float().numpy())
        else:
            assert np.array_equal(found[name].data, tensor.numpy())


def test_every_bfloat16_is_read_exactly(tmp_path: Path) -> None:
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    save_file({"all": bits}, tmp_path / "a.safetensors")
    found = read_safetensors(tmp_path / "a.safetensors")["all"].as_float32()
    assert np.array_equal(found, bits.float().numpy(), equal_nan=True)


def test_weights_are_not_copied(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1000)}, tmp_path / "a.safetensors")
    found = read_safetensors(tmp_path / "a.safetensors")["a"]
    assert found.as_float32() is found.data or np.shares_memory(found.as_float32(), found.data)
    assert not found.data.flags.writeable, "a file is read, never written"


def lay(header: Any, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def one(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | changes


WRONG = {
    "a gap at first": (lay({"a": one(data_offsets=[4, 8])}, bytes(8)), "where the previous"),
    "a gap": (
        lay({"a": one(), "b": one(data_offsets=[8, 12])}, bytes(12)),
        "'b' does not begin where",
    ),
    "an overlap": (lay({"a": one(), "b": one()}, bytes(4)), "does not begin where"),
    "a tail": (lay({"a": one()}, bytes(5)), "does not end with its last array"),
    "cut short": (lay({"a": one()}, bytes(3)), "does not end within the file"),
    "backwards": (lay({"a": one(data_offsets=[4, 0])}, bytes(4)), "differs from shape"),
    "a truth value": (lay({"a": one(shape=[True])}, bytes(4)), "in whole numbers"),
    "three offsets": (lay({"a": one(data_offsets=[0, 4, 4])}, bytes(4)), "in whole numbers"),
    "no offsets": (lay({"a": one(data_offsets=None)}, bytes(4)), "in whole numbers"),
    "no entry": (lay({"a": 7}), "has no dtype"),
    "no type": (lay({"a": one(dtype=None)}, bytes(4)), "has no dtype"),
    "a long name": (lay({"x" * 5000: one(dtype="Q")}, bytes(4)), "unknown type 'Q'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_files_give_one_error_message(tmp_path: Path, name: str) -> None:
    raw, message = WRONG[name]
    (tmp_path / "a.safetensors").write_bytes(raw)
    with pytest.raises(ModelError, match=message) as caught:
        read_safetensors(tmp_path / "a.safetensors")
    assert len(str(caught.value)) < 600


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_changed_header_is_read_or_gives_a_model_error(tmp_path_factory: Any, data: Any) -> None:
    raw = bytearray(lay({"a": one(), "b": one(data_offsets=[4, 8])}, bytes(8)))
    place = data.draw(st.integers(0, len(raw) - 9))
    raw[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("file") / "a.safetensors"
    path.write_bytes(bytes(raw))
    with suppress(ModelError):  # any other exception fails the test
        read_safetensors(path)


def test_int8_with_scales_is_widened_cut_and_stacked() -> None:
    scales = np.array([0.5, 2.0], np.float32)
    one = Weight("int8", np.array([[1, -127], [3, 0]], np.int8), scales)
    assert one.as_float32().tolist() == [[0.5, -63.5], [6.0, 0.0]]
    assert one.as_float32().dtype == np.float32
    assert one.rows(np.array([1])).as_float32().tolist() == [[6.0, 0.0]]
    both = stack([one, one.rows(np.array([1]))])
    assert both.kind == "int8"
    assert both.as_float32().tolist() == [[0.5, -63.5], [6.0, 0.0], [6.0, 0.0]]
    mixed = stack([one, Weight("float16", np.ones((1, 2), np.float16))])
    assert mixed.kind == "float32"
    assert mixed.as_float32().tolist() == [[0.5, -63.5], [6.0, 0.0], [1.0, 1.0]]
    assert stack([one]) is one


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_scales_of_any_width_are_checked_without_a_warning(kind: Any) -> None:
    data = np.ones((2, 4), np.int8)
    scale = np.array([1, np.finfo(np.float16).max], kind)
    assert Weight("int8", data, scale).is_finite()
    assert not Weight("int8", data, np.array([1, np.inf], kind)).is_finite()
    assert not Weight("int8", data, np.array([np.nan, 1], kind)).is_finite()
    assert kind is np.float16 or not Weight("int8", data, np.array([3e38, 1], kind)).is_finite()
