"""Weights under the names of their file, and conversions that readers share."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from outrider.errors import ModelError
from outrider.formats.safetensors import Weight
from outrider.formats.weights import FLOATS


class Copy(NamedTuple):
    """A tied table that a file stores under two names."""

    table: Weight
    copy: Weight
    table_name: str
    copy_name: str


class Stored(Mapping[str, Weight]):
    """Weights under the names of their file.

    Reading a weight checks its number type. `check_left` refuses the weights that no reader reads.
    """

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        """Hold all weights of a folder."""
        self._weights, self._missing_prefix = weights, ""
        self._names: dict[str, str] = {}
        self.read: dict[str, Weight] = {}
        """Weights that are read so far."""
        self.copies: list[Copy] = []
        """Tables that are stored twice; `formats.folder` compares them."""

    def __getitem__(self, name: str) -> Weight:
        name = self._name(name)
        weight = self._weights[name]
        if weight.scale is None and weight.kind not in FLOATS:
            kinds = ", ".join(sorted(FLOATS))
            raise ModelError(f"{name!r} is stored as {weight.kind}, expected one of {kinds}")
        self.read[name] = weight
        return weight

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._name(name) in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def expect_prefix(self, prefix: str) -> None:
        """Look up names without a prefix if none has it, as in files that lack the head."""
        if not any(name.startswith(prefix) for name in self._weights):
            self._missing_prefix = prefix

    def take(self, name: str) -> Weight:
        """Return a required weight."""
        if name not in self:
            raise ModelError(f"the weights lack {self._name(name)!r}")
        return self[name]

    def tie(self, *names: str) -> None:
        """Treat several names as one table, which the file may store under some of them."""
        first, *copies = [name for name in names if name in self] or names[:1]
        self._names[names[0]] = first
        self.copies += [
            Copy(self[first], self[copy], self._name(first), self._name(copy)) for copy in copies
        ]

    def check_left(self, ignored: Sequence[str] = ()) -> None:
        """Refuse weights that are not read, except names with an ignored suffix."""
        left = self._weights.keys() - self.read
        unknown = [name for name in left if not name.endswith(tuple(ignored))]
        if unknown:
            name, count = min(unknown)[:200], len(unknown)
            message = f"the weights have an unknown {name!r} ({count} names are not computed)"
            raise ModelError(f"{message}; remove them if the model does not need them")

    def _name(self, name: str) -> str:
        return self._names.get(name, name).removeprefix(self._missing_prefix)


def rename(theirs: Stored, names: Iterable[tuple[str, Sequence[str]]]) -> dict[str, Weight]:
    """Return weights by new names, each stacked from the old names that are given for it."""
    return {name: stack([theirs.take(part) for part in parts]) for name, parts in names}


def stack(parts: Sequence[Weight]) -> Weight:
    """Concatenate weights by rows; a single one is not copied."""
    if len(parts) == 1:
        return parts[0]
    if len({(part.kind, part.scale is None) for part in parts}) > 1:
        return Weight("float32", np.concatenate([part.as_float32() for part in parts]))
    scales = [part.scale for part in parts if part.scale is not None]
    data = np.concatenate([part.data for part in parts])
    return Weight(parts[0].kind, data, np.concatenate(scales) if scales else None)


def scaled(weight: Weight, factor: float) -> Weight:
    """Multiply a weight; a factor of 1 makes no copy."""
    if factor == 1:
        return weight
    with np.errstate(over="ignore", invalid="ignore"):  # `Weight.is_finite` checks
        return Weight("float32", weight.as_float32() * np.float32(factor))


def transposed(weight: Weight) -> Weight:
    """Transpose a matrix."""
    if weight.data.ndim != 2:
        raise ModelError(f"a matrix has the shape {list(weight.shape)}")
    if weight.scale is not None:  # scales belong to rows, which become columns
        return Weight("float32", np.ascontiguousarray(weight.as_float32().T))
    return Weight(weight.kind, np.ascontiguousarray(weight.data.T))


def lengthened(table: Weight, rows: int) -> Weight:
    """Append rows of zeros to a table, up to `rows`."""
    more = rows - len(table.data)
    if not more:
        return table
    data = np.concatenate([table.data, np.zeros((more, table.shape[1]), table.data.dtype)])
    scale = table.scale
    if scale is not None:
        scale = np.concatenate([scale, np.ones(more, np.float32)])
    return Weight(table.kind, data, scale)


def zeros(*shape: int) -> Weight:
    """Return a weight of zeros, such as the bias of a product without one."""
    return Weight("float32", np.zeros(shape, np.float32))
