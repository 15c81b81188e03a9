"""Which keys a description has, and which values they take."""

from collections.abc import Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from outrider.errors import ConfigError, nearest

__all__ = ["check_keys", "describe"]

DescriptionT = TypeVar("DescriptionT")

GENERAL = {
    *("architectures", "chunk_size_feed_forward", "dtype", "id2label", "is_decoder"),
    *("is_encoder_decoder", "label2id", "output_hidden_states", "problem_type", "return_dict"),
    "transformers_version",
}
"""Keys that Hugging Face gives every config, and that say nothing of how ours compute."""
NAMES = {
    **{bool: "true or false", dict: "a section of keys", float: "a number"},
    **{int: "a whole number", list: "a list", str: "text", type(None): "null"},
}


def describe(cls: type[DescriptionT], values: Mapping[str, Any]) -> DescriptionT:
    """Build a description from the values of a `config.json`, after checking every one of them."""
    # Names with an underscore are transformers' own, and one of them names code to fetch.
    own = {k: v for k, v in values.items() if k not in GENERAL and not k.startswith("_")}
    check_keys(cls, own)
    own.pop("model_type", None)
    hints = get_type_hints(cls)
    for key, value in own.items():
        if not _suits(value, hints[key]):
            raise ConfigError(key, f"got {value!r}, expected {_named(hints[key])}")
    return cls(**own)


def check_keys(cls: type[Any], values: Mapping[str, Any], *, prefix: str = "") -> None:
    """Refuse keys that the class does not have; Hugging Face would take any."""
    known = {field.name for field in fields(cls)} | {"model_type"}
    for key in values:
        if key not in known and not key.startswith("_"):
            name = cls.__name__.replace("Description", "Config")
            raise ConfigError(f"{prefix}{key}", f"unknown key of {name}{nearest(key, known)}")


def _suits(value: Any, wanted: Any) -> bool:
    if wanted is Any:
        return True
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return any(_suits(value, one) for one in arguments)
    if origin is list:
        return isinstance(value, list) and all(_suits(one, arguments[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict)  # keys of JSON are text
    return type(value) is wanted  # true is no whole number


def _named(wanted: Any) -> str:
    if get_origin(wanted) in (Union, UnionType):
        return " or ".join(dict.fromkeys(_named(one) for one in get_args(wanted)))
    return NAMES[get_origin(wanted) or wanted]
