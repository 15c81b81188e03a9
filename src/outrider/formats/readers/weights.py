"""Weights of another family on their way into ours.

What readers of Hugging Face folders do to a `config.json` on its way into a description.

`ALIASES` of a class of values are further names of its keys: a config may use either name in
transformers, which lets the alias win. Here both must agree.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from outrider.errors import ConfigError, ModelError
from outrider.formats.safetensors import Weight
from outrider.formats.spec import build_spec
from outrider.formats.weights import FLOATS

__all__ = [
    "Copy",
    "Stored",
    "activation",
    "check_twins",
    "end_of",
    "rename",
    "scaled",
    "stack",
    "take",
    "transposed",
    "zeros",
]


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


ACTIVATIONS = {
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Their names of an activation where they differ from ours."""


class _Values(Protocol):
    ALIASES: ClassVar[Mapping[str, str]]


ValuesT = TypeVar("ValuesT", bound=_Values)


def take(cls: type[ValuesT], values: Mapping[str, Any]) -> ValuesT:
    """Read the keys that say how a model computes; all further ones say nothing of that."""
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    found = {key: values[key] for key in values.keys() & known}
    for alias, key in cls.ALIASES.items():
        value = values.get(alias)
        if value is not None and found.setdefault(key, value) != value:
            message = f"{value!r} differs from {key} {found[key]!r}; remove the wrong one"
            raise ConfigError(alias, message)
    return build_spec(cls, found)


def check_twins(theirs: object, twins: Mapping[str, str]) -> None:
    """Refuse a key that does not say what another says, where a model of ours has one for both."""
    for key, twin in twins.items():
        found, expected = getattr(theirs, key), getattr(theirs, twin)
        if found != expected:
            raise ConfigError(key, f"{found} differs from {twin} {expected}, not supported")


def activation(name: str) -> str:
    """Return our name of an activation."""
    return ACTIVATIONS.get(name, name)


def end_of(eos: int | list[int] | None) -> int:
    """Return an end token to stand where a model needs some token and names none."""
    first = eos[0] if isinstance(eos, list) and eos else eos
    return first if isinstance(first, int) else 0
