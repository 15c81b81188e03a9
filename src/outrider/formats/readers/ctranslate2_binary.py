"""CTranslate2's `model.bin`, format 6, read by memory map.

    u32 format    name of the specification    u32 revision
    u32 count     then each variable:  name, u8 rank, u32 each length, u8 type, u32 bytes, the bytes
    u32 count     then each alias:     name, name of the variable it stands for

A name is a u16 length (with its final zero) and the bytes. The file is untrusted: every length is
compared with the rest of the file before reading.
"""

import mmap
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelError
from outrider.files import open_regular

FORMAT = 6
NAME_BYTES = 1 << 10
RANK = 4
KINDS: dict[int, tuple[str, type[np.generic]]] = {
    0: ("float32", np.float32),
    1: ("int8", np.int8),
    2: ("int16", np.int16),
    3: ("int32", np.int32),
    4: ("float16", np.float16),
    5: ("bfloat16", np.uint16),
}
"""Number of a type: its name, and numpy's type for the bytes."""


class Variable(NamedTuple):
    """A stored array."""

    kind: str
    data: NDArray[Any]


class Binary(NamedTuple):
    """The content of a `model.bin`; a variable and its aliases are the same object."""

    specification: str
    variables: dict[str, Variable]


class _Cursor:
    """Reads a file from its beginning to its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.place = path, data, 0

    def number(self, size: int) -> int:
        return int.from_bytes(self.data[self.take(size) : self.place], "little")

    def name(self) -> str:
        size = self.number(2)
        if not 2 <= size <= NAME_BYTES:
            raise self.damaged(f"a name of {size} bytes at byte {self.place}")
        raw = self.data[self.take(size) : self.place]
        try:
            return raw.removesuffix(b"\0").decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"the name at byte {self.place - size} is not UTF-8") from error

    def take(self, size: int) -> int:
        """Skip `size` bytes; return the offset of the first."""
        begin = self.place
        if size > len(self.data) - begin:
            raise self.damaged(f"it ends within the entry at byte {begin}")
        self.place += size
        return begin

    def damaged(self, reason: str) -> ModelError:
        message = f"damaged, or not a model.bin of CTranslate2 ({reason[:300]})"
        return ModelError(f"{self.path}: {message}")


def read_binary(path: Path) -> Binary:
    """Map a `model.bin` and return its variables by name."""
    with open_regular(path) as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file, or no address space
            raise ModelError(f"{path}: cannot be mapped ({error})") from error
    cursor = _Cursor(path, data)
    version = cursor.number(4)
    if version != FORMAT:
        raise cursor.damaged(f"its format is {version}, Outrider reads {FORMAT}")
    specification = cursor.name()
    cursor.number(4)  # the revision of the specification; its changes show in the names
    variables: dict[str, Variable] = {}
    for _ in range(cursor.number(4)):
        name = cursor.name()
        if name in variables:
            raise cursor.damaged(f"{name[:80]!r} occurs twice")
        variables[name] = _variable(cursor, name)
    for _ in range(cursor.number(4)):
        alias, name = cursor.name(), cursor.name()
        if name not in variables or variables.get(alias, variables[name]) is not variables[name]:
            raise cursor.damaged(f"{alias[:80]!r} is an invalid alias of {name[:80]!r}")
        variables[alias] = variables[name]
        if (scale := f"{name}_scale") in variables:  # not every file has an alias of the scale
            variables.setdefault(f"{alias}_scale", variables[scale])
    if cursor.place != len(data):
        raise cursor.damaged(f"{len(data) - cursor.place} bytes are left at its end")
    return Binary(specification, variables)


def _variable(cursor: _Cursor, name: str) -> Variable:
    rank = cursor.number(1)
    if rank > RANK:
        raise cursor.damaged(f"{name[:80]!r} has {rank} dimensions")
    shape = [cursor.number(4) for _ in range(rank)]
    number, size = cursor.number(1), cursor.number(4)
    if number not in KINDS:
        raise cursor.damaged(f"{name[:80]!r} has the unknown type {number}")
    kind, dtype = KINDS[number]
    if prod(shape) * np.dtype(dtype).itemsize != size:
        raise cursor.damaged(f"the length of {name[:80]!r} differs from shape {shape}")
    begin = cursor.take(size)
    if not size:
        return Variable(kind, np.empty(shape, dtype))
    array = np.frombuffer(cursor.data, dtype, prod(shape), begin).reshape(shape)
    return Variable(kind, array if array.flags.aligned else array.copy())
