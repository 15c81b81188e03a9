"""CTranslate2's `model.bin`, format 6, read by memory map.

    u32 format    name of the specification    u32 revision
    u32 count     then each variable:  name, u8 rank, u32 each length, u8 type, u32 bytes, the bytes
    u32 count     then each alias:     name, name of the variable it stands for

A name is a u16 length (its closing zero counts) and that many bytes. The file is untrusted: every
length is held against what is left of it before anything is read.
"""

import mmap
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelError
from outrider.files import open_regular

__all__ = ["Binary", "Variable", "read_binary"]

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
"""Their number of a type: its name, and what numpy holds it as."""


class Variable(NamedTuple):
    """An array as it lies in the file."""

    kind: str
    data: NDArray[Any]


class Binary(NamedTuple):
    """All that a `model.bin` says."""

    specification: str
    variables: dict[str, Variable]
    """Those that are another one under a second name stand here under both, as the same object."""


class _Cursor:
    """A place in the file, and how much is left after it."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.place = path, data, 0

    def number(self, size: int) -> int:
        return int.from_bytes(self.data[self.take(size) : self.place], "little")

    def name(self) -> str:
        size = self.number(2)
        if not 2 <= size <= NAME_BYTES:
            self.refuse(f"a name of {size} bytes at byte {self.place}")
        raw = self.data[self.take(size) : self.place]
        try:
            return raw.removesuffix(b"\0").decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(f"the name at byte {self.place - size} is no text")

    def take(self, size: int) -> int:
        """Step over `size` bytes; return where they begin."""
        begin = self.place
        if size > len(self.data) - begin:
            self.refuse(f"it ends within what begins at byte {begin}")
        self.place += size
        return begin

    def refuse(self, reason: str) -> NoReturn:
        message = f"damaged, or not a model.bin of CTranslate2 ({reason[:300]})"
        raise ModelError(f"{self.path}: {message}") from None


def read_binary(path: Path) -> Binary:
    """Map a `model.bin` and return its variables by name."""
    with open_regular(path) as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file, or no room to map it
            raise ModelError(f"{path}: cannot be mapped ({error})") from None
    cursor = _Cursor(path, data)
    found = cursor.number(4)
    if found != FORMAT:
        cursor.refuse(f"its format is {found}, Outrider reads {FORMAT}")
    specification = cursor.name()
    cursor.number(4)  # a revision of the specification: what it means for us is in the names
    variables: dict[str, Variable] = {}
    for _ in range(cursor.number(4)):
        name = cursor.name()
        if name in variables:
            cursor.refuse(f"{name[:80]!r} is there twice")
        variables[name] = _variable(cursor, name)
    for _ in range(cursor.number(4)):
        alias, name = cursor.name(), cursor.name()
        if name not in variables or variables.get(alias, variables[name]) is not variables[name]:
            cursor.refuse(f"{alias[:80]!r} stands for {name[:80]!r}, which cannot be")
        variables[alias] = variables[name]
        if (scale := f"{name}_scale") in variables:  # which goes with it, said or not
            variables.setdefault(f"{alias}_scale", variables[scale])
    if cursor.place != len(data):
        cursor.refuse(f"{len(data) - cursor.place} bytes are left at its end")
    return Binary(specification, variables)


def _variable(cursor: _Cursor, name: str) -> Variable:
    rank = cursor.number(1)
    if rank > RANK:
        cursor.refuse(f"{name[:80]!r} has {rank} dimensions")
    shape = [cursor.number(4) for _ in range(rank)]
    number, size = cursor.number(1), cursor.number(4)
    if number not in KINDS:
        cursor.refuse(f"{name[:80]!r} has the unknown type {number}")
    kind, dtype = KINDS[number]
    if prod(shape) * np.dtype(dtype).itemsize != size:
        cursor.refuse(f"{name[:80]!r} is not as long as its shape {shape} says")
    begin = cursor.take(size)
    if not size:
        return Variable(kind, np.empty(shape, dtype))
    array = np.frombuffer(cursor.data, dtype, prod(shape), begin).reshape(shape)
    return Variable(kind, array if array.flags.aligned else array.copy())
