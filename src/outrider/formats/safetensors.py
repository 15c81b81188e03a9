"""The safetensors format, read by memory map.

    8 bytes    length of the header
    header     {name: {"dtype", "shape", "data_offsets": [begin, end]}, ...}
    the rest   the arrays, without gaps

The header is untrusted: arrays must be contiguous, fill the file, and have the length of their
shape. Nothing is copied, and processes that map a file share its memory.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelError, OutriderError
from outrider.files import open_regular, parse_json

HEADER_BYTES = 100 << 20
"""Longest header, as in the format's own library."""
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
"""Number types of the format: the usual name, and numpy's type for the bytes."""
GROUP = 32
"""Numbers of int4 that share a scale."""
PIECE = 1 << 18
"""Numbers that are checked at a time."""
EXPONENTS = {"float16": np.uint16(0x7C00), "bfloat16": np.uint16(0x7F80)}
"""The exponent bits of infinity and NaN."""
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Weight:
    """A stored array; bfloat16, which numpy lacks, is held as uint16."""

    kind: str
    """float32, bfloat16, ..."""
    data: NDArray[Any]
    scale: NDArray[Any] | None = None
    """Factors of quantised numbers (`formats.quantised`): one for a row, or for 32 numbers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its dimensions."""
        if self.kind == "int4":
            return self.data.shape[0], 2 * self.data.shape[1]
        return self.data.shape

    def as_float32(self) -> NDArray[np.float32]:
        """Return its numbers as float32, contiguous; without a copy if they are stored so."""
        if self.kind == "int4":
            return self._widened()
        if self.scale is not None:
            return self.data * self.scale[:, None]
        if self.kind != "bfloat16":
            with np.errstate(over="ignore", invalid="ignore"):  # `is_finite` checks
                return np.asarray(self.data, dtype=np.float32, order="C")
        bits = self.data.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)

    def is_finite(self) -> bool:
        """Whether every number is finite as float32."""
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
            np.array_equal(mine, theirs)
            for mine, theirs in zip(_pieces(self.data), _pieces(other.data), strict=True)
        )
        if self.scale is None or other.scale is None:
            return same
        return same and np.array_equal(self.scale, other.scale)

    def rows(self, index: NDArray[np.integer] | slice) -> "Weight":
        """Return some of its rows."""
        return Weight(
            self.kind, self.data[index], None if self.scale is None else self.scale[index]
        )

    def _widened(self) -> NDArray[np.float32]:
        """Return the numbers of int4."""
        assert self.scale is not None
        wide = np.empty((*self.data.shape, 2), np.float32)
        np.subtract(self.data & 15, np.float32(8), out=wide[..., 0])
        np.subtract(self.data >> 4, np.float32(8), out=wide[..., 1])
        groups = wide.reshape(*self.scale.shape, GROUP)
        groups *= self.scale.astype(np.float32)[..., None]
        return wide.reshape(self.shape)


def _pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield an array in pieces that fit into a cache; float16 as its bits."""
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
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file, or no address space
            raise _damaged(path, str(error)) from error
    size = int.from_bytes(mapped[:8], "little")
    start = 8 + size
    if len(mapped) < 8 or size > HEADER_BYTES or start > len(mapped):
        raise _damaged(path, "the header is longer than the file")
    try:
        header = parse_json(mapped[8:start], path)
    except OutriderError as error:
        raise _damaged(path, str(error).removeprefix(f"{path}: ")) from error
    header.pop("__metadata__", None)
    weights, end = {}, start
    for name, entry in sorted(header.items(), key=lambda item: _offsets(item[1])):
        kind, dtype, shape, begin, after = _check_entry(path, name, entry)
        if start + begin != end:
            raise _damaged(path, f"{name[:80]!r} does not begin where the previous array ends")
        end = start + after
        if end > len(mapped):
            raise _damaged(path, f"{name[:80]!r} does not end within the file")
        weights[name] = Weight(kind, _view(mapped, dtype, shape, start + begin))
    if end != len(mapped):
        raise _damaged(path, "the file does not end with its last array")
    return {name: weights[name] for name in header}


def _offsets(entry: Any) -> tuple[int, ...]:
    """Return the offsets of an entry that is not yet checked; () if it has none."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    return tuple(offsets) if _are_sizes(offsets) else ()


def _check_entry(
    path: Path, name: str, entry: Any
) -> tuple[str, type[np.generic], list[int], int, int]:
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        raise _damaged(path, f"{name[:80]!r} has no dtype")
    kind, dtype = KINDS.get(entry["dtype"], ("", np.uint8))
    if not kind:
        raise _damaged(path, f"{name[:80]!r} has the unknown type {entry['dtype'][:80]!r}")
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise _damaged(path, f"{name[:80]!r} has no shape and offsets in whole numbers")
    begin, end = offsets
    if end - begin != prod(shape) * np.dtype(dtype).itemsize:
        raise _damaged(path, f"the length of {name[:80]!r} differs from shape {str(shape)[:80]}")
    return kind, dtype, shape, begin, end


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _view(data: mmap.mmap, dtype: type[np.generic], shape: list[int], offset: int) -> NDArray[Any]:
    count = prod(shape)
    if not count:
        return np.empty(shape, dtype)
    array = np.frombuffer(data, dtype, count, offset).reshape(shape)
    return array if array.flags.aligned else array.copy()


def _damaged(path: Path, reason: str) -> ModelError:
    return ModelError(f"{path}: damaged or not safetensors ({reason[:300]})")
