"""Marian's binary files (`.bin`), read by memory map.

    u64 u64    version, count of items
    headers    u64 bytes of the name, u64 type, u64 dimensions, u64 bytes of the numbers
    names      each ends with a zero byte
    shapes     i32 each
    u64        bytes of padding
    numbers    of every item, one after another

The file is untrusted: every count and size is compared with the rest of the file before use.
intgemm weights are transposed, as bytes followed by one factor: a number is a byte divided by it.
"""

import mmap
import struct
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelError
from outrider.files import open_regular

VERSION = 1
NAME_BYTES = 1000
DIMENSIONS = 8
INT8, FLOAT32, INTGEMM8 = 0x101, 0x404, 0x4101
SIZES = {INT8: 1, FLOAT32: 4, INTGEMM8: 1}
"""Supported types, and bytes of a number."""
NAMES = {
    0x402: "float16",
    0x4102: "intgemm16",
    **dict.fromkeys((0x5101, 0x6101, 0x7101), "int8 prepared for one CPU"),
    **dict.fromkeys((0x801, 0x802, 0x1801, 0x2801), "packed for one CPU"),
}
"""Names of other types."""
FACTOR = struct.Struct("<f")


@dataclass(frozen=True)
class Item:
    """A stored array."""

    type: int
    shape: tuple[int, ...]
    data: NDArray[Any]
    """Flat."""
    factor: float | None = None
    """Of intgemm8: the factor that numbers were multiplied by."""


class _Reader:
    """Reads a file from its beginning to its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def skip(self, count: int) -> int:
        """Skip bytes; return the offset of the first."""
        begin = self.at
        if count > len(self.data) - begin:
            raise _damaged("it ends too soon")
        self.at += count
        return begin

    def numbers(self, letter: str, count: int) -> tuple[int, ...]:
        form = struct.Struct(f"<{count}{letter}")
        return form.unpack_from(self.data, self.skip(form.size))

    def name(self, count: int) -> str:
        begin = self.skip(count)
        raw = self.data[begin : self.at].removesuffix(b"\0")
        if not raw or not raw.isascii() or not raw.decode().isprintable():
            raise _damaged("the name of an item is not printable ASCII")
        return raw.decode()


def read_marian_binary(path: Path) -> dict[str, Item]:
    """Map a file and return its items by name, without factors of activations.

    Error messages do not name the file.
    """
    with open_regular(path) as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file, or no address space
            raise _damaged(str(error)) from error
    reader = _Reader(mapped)
    version, count = reader.numbers("Q", 2)
    if version != VERSION:
        raise _damaged(f"its version is {version}, expected {VERSION}")
    if count > (len(mapped) - reader.at) // 32:
        raise _damaged("it ends too soon")
    headers = [reader.numbers("Q", 4) for _ in range(count)]
    if any(length > NAME_BYTES or dimensions > DIMENSIONS for length, _, dimensions, _ in headers):
        raise _damaged("an item has a name or a shape that is too long")
    names = [reader.name(length) for length, *_ in headers]
    shapes = [reader.numbers("i", dimensions) for _, _, dimensions, _ in headers]
    reader.skip(*reader.numbers("Q", 1))
    items: dict[str, Item] = {}
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        begin = reader.skip(size)
        if name in items:
            raise _damaged(f"{name!r} occurs twice")
        if not name.endswith("_QuantMultA"):
            items[name] = _item(reader, name, kind, shape, begin, size)
    if reader.at != len(mapped):
        raise _damaged("it does not end with its last item")
    return items


def _item(
    reader: _Reader, name: str, kind: int, shape: tuple[int, ...], begin: int, size: int
) -> Item:
    if kind not in SIZES:
        type_name = NAMES.get(kind, f"of the unknown type {kind:#x}")
        raise ModelError(f"{name!r} is {type_name}, expected float32 or intgemm8")
    if any(length < 1 for length in shape) or not shape:
        raise _damaged(f"{name!r} has the shape {list(shape)}")
    count = prod(shape)
    if count * SIZES[kind] + (FACTOR.size if kind == INTGEMM8 else 0) > size:
        raise _damaged(f"{name!r} is shorter than its shape {list(shape)}")
    dtype = np.float32 if kind == FLOAT32 else np.int8
    data = np.frombuffer(reader.data, dtype, count, begin)
    if not data.flags.aligned:
        data = data.copy()
    if kind != INTGEMM8:
        return Item(kind, shape, data)
    (factor,) = FACTOR.unpack_from(reader.data, begin + count)
    if not isfinite(factor) or factor <= 0:
        raise _damaged(f"{name!r} has the factor {factor}")
    return Item(kind, shape, data, factor)


def _damaged(reason: str) -> ModelError:
    return ModelError(f"damaged or not a Marian binary file ({reason})")
