"""The safetensors format, read by memory map: a header in JSON, then the arrays one after another.

    8 bytes    length of the header
    header     {name: {"dtype", "shape", "data_offsets": [begin, end]}, ...}
    the rest   the arrays, without gaps

The header is untrusted: every array must lie where the one before it ended, be as long as its shape
says, and end with the file. Nothing is copied, and processes that map one file share its memory.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelError, OutriderError
from outrider.files import open_regular, parse_json

__all__ = ["GROUP", "Weight", "read_safetensors"]

HEADER_BYTES = 100 << 20
"""Longest header; the format's own library allows as much."""
KINDS: dict[str, tuple[str, type[np.generic]]] = {
    "F64": ("float64", np.float64),
    "F32": ("float32", np.float32),
    "F16": ("float16", np.float16),
    "BF16": ("bfloat16", np.uint16),
    "F8_E4M3": ("float8_e4m3fn", np.uint8),
    "F8_E5M2": ("float8_e5m2", np.uint8),
    "I64": ("int64", np.int64),
    "I32": ("int32", np.int32),
    "I16": ("int16", np.int16),
    "I8": ("int8", np.int8),
    "U64": ("uint64", np.uint64),
    "U32": ("uint32", np.uint32),
    "U16": ("uint16", np.uint16),
    "U8": ("uint8", np.uint8),
    "BOOL": ("bool", np.bool_),
}
"""Their name of a number type: the usual one, and what numpy holds it as."""
GROUP = 32
"""Numbers of int4 that share a scale."""
PIECE = 1 << 18
"""Numbers that are checked at a time."""
EXPONENTS = {"float16": np.uint16(0x7C00), "bfloat16": np.uint16(0x7F80)}
"""All bits of the exponent: infinite, or not a number."""
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Weight:
    """An array as it is stored. Numpy has no bfloat16: those numbers are their bits, in uint16."""

    kind: str
    """float32, bfloat16, ..."""
    data: NDArray[Any]
    scale: NDArray[Any] | None = None
    """Of int8 and int4 that stand for float32 (`formats.quantised`): numbers are `data` times this,
    one scale for a row, or for 32 numbers of it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its lengths."""
        if self.kind == "int4":
            return self.data.shape[0], 2 * self.data.shape[1]
        return self.data.shape

    def as_float32(self) -> NDArray[np.float32]:
        """Return its numbers as float32, in one piece: itself where it is."""
        if self.kind == "int4":
            return self._from_halves()
        if self.scale is not None:
            return self.data * self.scale[:, None]
        if self.kind != "bfloat16":
            with np.errstate(over="ignore", invalid="ignore"):  # `is_finite` tells
                return np.asarray(self.data, dtype=np.float32, order="C")
        bits = self.data.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)

    def is_finite(self) -> bool:
        """Whether every number is finite as float32; nothing is copied but a piece at a time."""
        if self.scale is not None:
            return bool((np.abs(self.scale.astype(np.float64)) <= LARGEST / 128).all())
        return all(_are_finite(self.kind, piece) for piece in _pieces(self.data))

    def equals(self, other: "Weight") -> bool:
        """Whether another array has the same shape and numbers."""
        if self.shape != other.shape:
            return False
        if self.kind != other.kind or (self.scale is None) != (other.scale is None):
            return np.array_equal(self.as_float32(), other.as_float32())
        same = self.data is other.data or all(
            np.array_equal(one, two)
            for one, two in zip(_pieces(self.data), _pieces(other.data), strict=True)
        )
        if self.scale is None or other.scale is None:
            return same
        return same and np.array_equal(self.scale, other.scale)

    def rows(self, index: NDArray[np.integer] | slice) -> "Weight":
        """Return some of its rows."""
        return Weight(
            self.kind, self.data[index], None if self.scale is None else self.scale[index]
        )

    def _from_halves(self) -> NDArray[np.float32]:
        """Widen numbers of which a byte holds two."""
        assert self.scale is not None
        found = np.empty((*self.data.shape, 2), np.float32)
        np.subtract(self.data & 15, np.float32(8), out=found[..., 0])
        np.subtract(self.data >> 4, np.float32(8), out=found[..., 1])
        groups = found.reshape(*self.scale.shape, GROUP)
        groups *= self.scale.astype(np.float32)[..., None]
        return found.reshape(self.shape)


def _pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the numbers of an array in pieces that fit into a cache; float16 as its bits."""
    flat = array.reshape(-1)
    flat = flat.view(np.uint16) if flat.dtype == np.float16 else flat
    for start in range(0, len(flat), PIECE):
        yield flat[start : start + PIECE]


def _are_finite(kind: str, numbers: NDArray[Any]) -> bool:
    if (exponent := EXPONENTS.get(kind)) is not None:
        return not bool(((numbers & exponent) == exponent).any())
    if kind == "float64":
        return bool((np.abs(numbers) <= LARGEST).all())
    return kind != "float32" or bool(np.isfinite(numbers).all())


def read_safetensors(path: Path) -> dict[str, Weight]:
    """Map a file and return its arrays by name."""
    with open_regular(path) as file:
        try:
            with_header = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file, or no room to map it
            _refuse(path, str(error))
    size = int.from_bytes(with_header[:8], "little")
    start = 8 + size
    if len(with_header) < 8 or size > HEADER_BYTES or start > len(with_header):
        _refuse(path, "the header is longer than the file")
    try:
        header = parse_json(with_header[8:start], path)
    except OutriderError as error:
        _refuse(path, str(error).removeprefix(f"{path}: "))
    header.pop("__metadata__", None)
    weights, end = {}, start
    for name, about in sorted(header.items(), key=lambda item: _place(item[1])):
        kind, dtype, shape, begin, after = _entry(path, name, about)
        if start + begin != end:
            _refuse(path, f"{name[:80]!r} does not begin where the one before it ends")
        end = start + after
        if end > len(with_header):
            _refuse(path, f"{name[:80]!r} does not end within the file")
        weights[name] = Weight(kind, _view(with_header, dtype, shape, start + begin))
    if end != len(with_header):
        _refuse(path, "the file does not end with its last array")
    return {name: weights[name] for name in header}


def _place(about: Any) -> tuple[int, ...]:
    """Where an array lies, as far as that can be said before it is checked."""
    offsets = about.get("data_offsets") if isinstance(about, dict) else None
    return tuple(offsets) if _are_sizes(offsets) else ()


def _entry(path: Path, name: str, about: Any) -> tuple[str, type[np.generic], list[int], int, int]:
    if not isinstance(about, dict) or not isinstance(about.get("dtype"), str):
        _refuse(path, f"{name[:80]!r} has no description")
    kind, dtype = KINDS.get(about["dtype"], ("", np.uint8))
    if not kind:
        _refuse(path, f"{name[:80]!r} has the unknown type {about['dtype'][:80]!r}")
    shape, offsets = about.get("shape"), about.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        _refuse(path, f"{name[:80]!r} has no shape and place in whole numbers")
    begin, end = offsets
    if end - begin != prod(shape) * np.dtype(dtype).itemsize:
        _refuse(path, f"{name[:80]!r} is not as long as its shape {str(shape)[:80]} says")
    return kind, dtype, shape, begin, end


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(one) is int and one >= 0 for one in values)


def _view(data: mmap.mmap, dtype: type[np.generic], shape: list[int], offset: int) -> NDArray[Any]:
    count = prod(shape)
    if not count:
        return np.empty(shape, dtype)
    array = np.frombuffer(data, dtype, count, offset).reshape(shape)
    return array if array.flags.aligned else array.copy()


def _refuse(path: Path, reason: str) -> NoReturn:
    raise ModelError(f"{path}: damaged or not safetensors ({reason[:300]})") from None
