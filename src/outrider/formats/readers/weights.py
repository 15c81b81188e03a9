"""Weights of another family on their way into ours."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from outrider.errors import ModelError
from outrider.formats.safetensors import Weight
from outrider.formats.weights import FLOATS

__all__ = ["Copy", "Stored", "rename", "scaled", "stack", "transposed", "zeros"]


class Copy(NamedTuple):
    """A table that a file stores under two names."""

    table: Weight
    copy: Weight
    table_name: str
    copy_name: str


class Stored(Mapping[str, Weight]):
    """Weights under the names of their file.

    Reading a weight checks its number type. `check_left` refuses the weights that no reader reads.
    """

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        """Take all weights of a folder."""
        self._weights, self._missing_prefix = weights, ""
        self._names: dict[str, str] = {}
        self.read: dict[str, Weight] = {}
        """Weights that were read so far."""
        self.copies: list[Copy] = []
        """Tables that are stored twice; `formats.folder` compares them."""

    def __getitem__(self, name: str) -> Weight:
        """Return a weight and record that it is read."""
        name = self._name(name)
        weight = self._weights[name]
        if weight.scale is None and weight.kind not in FLOATS:
            kinds = ", ".join(sorted(FLOATS))
            raise ModelError(f"{name!r} is stored as {weight.kind}, expected one of {kinds}")
        self.read[name] = weight
        return weight

    def __contains__(self, name: object) -> bool:
        """Whether the file holds a weight."""
        return isinstance(name, str) and self._name(name) in self._weights

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the file."""
        return iter(self._weights)

    def __len__(self) -> int:
        """Count the weights."""
        return len(self._weights)

    def expect_prefix(self, prefix: str) -> None:
        """Look names up without a prefix that no name has: the file was saved without its head."""
        if not any(name.startswith(prefix) for name in self._weights):
            self._missing_prefix = prefix

    def take(self, name: str) -> Weight:
        """Return a weight that must be there."""
        if name not in self:
            raise ModelError(f"the weights lack {self._name(name)!r}")
        return self[name]

    def tie(self, name: str, *others: str) -> None:
        """Treat several names as one table, of which the file may hold any and more than one."""
        first, *copies = [one for one in (name, *others) if one in self] or [name]
        self._names[name] = first
        self.copies += [
            Copy(self[first], self[copy], self._name(first), self._name(copy)) for copy in copies
        ]

    def check_left(self, ignored: Sequence[str] = ()) -> None:
        """Refuse weights that were not read, but for names that end as `ignored` do."""
        left = [name for name in self._weights if name not in self.read]
        unknown = [name for name in left if not name.endswith(tuple(ignored))]
        if unknown:
            name, count = min(unknown)[:200], len(unknown)
            message = f"the weights have an unknown {name!r} ({count} names are not computed)"
            raise ModelError(f"{message}; remove them if the model does not need them")

    def _name(self, name: str) -> str:
        return self._names.get(name, name).removeprefix(self._missing_prefix)


def rename(theirs: Stored, names: Iterable[tuple[str, Sequence[str]]]) -> dict[str, Weight]:
    """Give weights our names: each of ours is theirs, or several of theirs below each other."""
    return {name: stack([theirs.take(part) for part in parts]) for name, parts in names}


def stack(parts: Sequence[Weight]) -> Weight:
    """Put weights below each other; a single one stays where it is."""
    if len(parts) == 1:
        return parts[0]
    if len({(part.kind, part.scale is None) for part in parts}) > 1:
        return Weight("float32", np.concatenate([part.as_float32() for part in parts]))
    scales = [part.scale for part in parts if part.scale is not None]
    data = np.concatenate([part.data for part in parts])
    return Weight(parts[0].kind, data, np.concatenate(scales) if scales else None)


def scaled(weight: Weight, factor: float) -> Weight:
    """Multiply a weight; by one it stays where it is."""
    if factor == 1:
        return weight
    with np.errstate(over="ignore", invalid="ignore"):  # `Weight.is_finite` tells
        return Weight("float32", weight.as_float32() * np.float32(factor))


def transposed(weight: Weight) -> Weight:
    """Turn a matrix round."""
    if weight.data.ndim != 2:
        raise ModelError(f"a matrix has the shape {list(weight.shape)}")
    if weight.scale is not None:  # of rows, which become columns
        return Weight("float32", np.ascontiguousarray(weight.as_float32().T))
    return Weight(weight.kind, np.ascontiguousarray(weight.data.T))


def zeros(*shape: int) -> Weight:
    """Return the bias of a product that has none."""
    return Weight("float32", np.zeros(shape, np.float32))
