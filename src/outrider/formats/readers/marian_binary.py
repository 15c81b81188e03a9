"""Marian's binary files (`.bin`), mapped: headers, names, shapes, then numbers.

    u64 u64    version, count of items
    headers    u64 bytes of the name, u64 type, u64 dimensions, u64 bytes of the numbers
    names      each with a zero byte behind it
    shapes     i32 each
    u64        bytes to skip, so that what follows is aligned
    numbers    of every item, one after another

A file is untrusted: every count and size is checked against what is left of it before anything is
made of it. Weights that intgemm multiplies lie transposed, as bytes with one factor behind them: a
number is a byte divided by it.
"""

import mmap
import struct
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelError
from outrider.files import open_regular

__all__ = ["Item", "read_marian_binary"]

VERSION = 1
NAME_BYTES = 1000
DIMENSIONS = 8
INT8, FLOAT32, INTGEMM8 = 0x101, 0x404, 0x4101
SIZES = {INT8: 1, FLOAT32: 4, INTGEMM8: 1}
"""Types we read, and bytes of a number."""
NAMES = {
    0x402: "float16",
    0x4102: "intgemm16",
    **dict.fromkeys((0x5101, 0x6101, 0x7101), "int8 prepared for one CPU"),
    **dict.fromkeys((0x801, 0x802, 0x1801, 0x2801), "packed for one CPU"),
}
"""What other types are called."""
FACTOR = struct.Struct("<f")


@dataclass(frozen=True)
class Item:
    """Numbers of a file as they lie there."""

    type: int
    shape: tuple[int, ...]
    data: NDArray[Any]
    """One after another."""
    factor: float | None = None
    """Of intgemm8: what numbers were multiplied by to be bytes."""


class _Reader:
    """Takes numbers off the front of a file, never more than there is."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def skip(self, count: int) -> int:
        """Return where `count` bytes begin, and go on behind them."""
        begin = self.at
        if count > len(self.data) - begin:
            _refuse("it ends too soon")
        self.at += count
        return begin

    def numbers(self, letter: str, count: int) -> tuple[int, ...]:
        form = struct.Struct(f"<{count}{letter}")
        return form.unpack_from(self.data, self.skip(form.size))

    def name(self, count: int) -> str:
        begin = self.skip(count)
        raw = self.data[begin : self.at].removesuffix(b"\0")
        if not raw or not raw.isascii() or not raw.decode().isprintable():
            _refuse("an item has no name in plain letters")
        return raw.decode()


def read_marian_binary(path: Path) -> dict[str, Item]:
    """Map a file and return its items by name; those that only scale activations are left out.

    What is wrong is said without the name of the file.
    """
    with open_regular(path) as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file, or no room to map it
            _refuse(str(error))
    reader = _Reader(mapped)
    version, count = reader.numbers("Q", 2)
    if version != VERSION:
        _refuse(f"its version is {version}, expected {VERSION}")
    if count > (len(mapped) - reader.at) // 32:
        _refuse("it ends too soon")
    headers = [reader.numbers("Q", 4) for _ in range(count)]
    if any(length > NAME_BYTES or dimensions > DIMENSIONS for length, _, dimensions, _ in headers):
        _refuse("an item has a name or a shape that is too long")
    names = [reader.name(length) for length, *_ in headers]
    shapes = [reader.numbers("i", dimensions) for _, _, dimensions, _ in headers]
    reader.skip(*reader.numbers("Q", 1))
    items: dict[str, Item] = {}
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        begin = reader.skip(size)
        if name in items:
            _refuse(f"{name!r} is there twice")
        if not name.endswith("_QuantMultA"):
            items[name] = _item(reader, name, kind, shape, begin, size)
    if reader.at != len(mapped):
        _refuse("it does not end with its last item")
    return items


def _item(
    reader: _Reader, name: str, kind: int, shape: tuple[int, ...], begin: int, size: int
) -> Item:
    if kind not in SIZES:
        known = NAMES.get(kind, f"of the unknown type {kind:#x}")
        raise ModelError(f"{name!r} is {known}, expected float32 or intgemm8")
    if any(length < 1 for length in shape) or not shape:
        _refuse(f"{name!r} has the shape {list(shape)}")
    count = prod(shape)
    if count * SIZES[kind] + (FACTOR.size if kind == INTGEMM8 else 0) > size:
        _refuse(f"{name!r} is not as long as its shape {list(shape)} says")
    dtype = np.float32 if kind == FLOAT32 else np.int8
    data = np.frombuffer(reader.data, dtype, count, begin)
    if not data.flags.aligned:
        data = data.copy()
    if kind != INTGEMM8:
        return Item(kind, shape, data)
    (factor,) = FACTOR.unpack_from(reader.data, begin + count)
    if not isfinite(factor) or factor <= 0:
        _refuse(f"{name!r} has the factor {factor}")
    return Item(kind, shape, data, factor)


def _refuse(reason: str) -> NoReturn:
    raise ModelError(f"damaged or not a Marian binary file ({reason})") from None
