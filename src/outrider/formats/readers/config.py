"""What readers of Hugging Face folders do to a `config.json` on its way into a description.

`ALIASES` of a class of values are further names of its keys: a config may use either name in
transformers, which lets the alias win. Here both must agree.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Protocol, TypeVar

from outrider.errors import ConfigError
from outrider.formats.description import describe

__all__ = ["activation", "check_twins", "end_of", "take"]

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
    return describe(cls, found)


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
