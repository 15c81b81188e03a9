"""Run configs: frozen pydantic models, read from YAML and `key=value` overrides.

A wrong key or value fails before data is read or weights are loaded; the message names the key as
typed and the nearest known key. Each package defines its own config classes; this module reads,
checks and explains them.
"""

import ast
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticUndefined, to_jsonable_python

from outrider.errors import ConfigError, OutriderError, nearest
from outrider.options import OPTIONS, DecodeConfig, short

ConfigT = TypeVar("ConfigT", bound="Config")


class Config(BaseModel):
    """Base of all run configs: frozen, no unknown keys, one docstring per field."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )


@contextmanager
def config_key(key: str) -> Iterator[None]:
    """Turn an error into a `ConfigError` of this key."""
    try:
        yield
    except OutriderError as error:
        raise ConfigError(key, str(error)) from error


@contextmanager
def keys_under(section: str, *, instead_of: str = "") -> Iterator[None]:
    """Prefix the key of a config error with a section, instead of another prefix."""
    try:
        yield
    except ConfigError as error:
        key = error.key.removeprefix(instead_of).removeprefix(".")
        raise ConfigError(f"{section}.{key}" if key else section, error.message) from error


class ExplainedKey(NamedTuple):
    """One row of `outrider config --explain`."""

    key: str
    type: str
    default: str
    text: str


def load_config(cls: type[ConfigT], path: str | Path, overrides: Sequence[str] = ()) -> ConfigT:
    """Read a YAML file, apply `a.b=value` overrides, and check the result against `cls`."""
    values = read_yaml(path)
    for override in overrides:
        _apply(values, override)
    return build_config(cls, values)


def build_config(cls: type[ConfigT], values: Mapping[str, Any], *, prefix: str = "") -> ConfigT:
    """Check plain values against `cls`; the first mistake becomes a ConfigError with its key."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise _as_config_error(cls, values, error, prefix) from error


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file that holds one mapping."""
    from outrider import yaml12

    path = Path(path)
    try:
        values = yaml12.parse(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise ConfigError(str(path), "no such config file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), f"is not UTF-8 text: {error.reason}") from error
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(str(path), f"is not YAML: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(str(path), f"must hold `key: value` lines, not a {type(values).__name__}")
    return values


def as_yaml(config: Config) -> str:
    """Return a config as YAML, from which an equal config can be read."""
    from outrider import yaml12

    return yaml12.dump(config.model_dump(mode="json"))


def completed(
    saved: Mapping[str, Any], config: Config, leave_out: Iterable[str] = ()
) -> dict[str, Any]:
    """Add keys that saved values lack, with their defaults."""
    values = dict(saved)
    for name, field in type(config).model_fields.items():
        section = getattr(config, name)
        if name in leave_out or (name not in values and field.is_required()):
            continue
        if name not in values:
            values[name] = to_jsonable_python(field.default)
        elif isinstance(section, Config) and isinstance(values[name], Mapping):
            values[name] = completed(values[name], section)
    return values


def explain(cls: type[Config] | type[DecodeConfig], prefix: str = "") -> Iterator[ExplainedKey]:
    """Yield every key of `cls`, depth first, with its type, default and meaning."""
    if not issubclass(cls, Config):
        yield from _explain_options(prefix)
        return
    for name, field in cls.model_fields.items():
        key = prefix + name
        text = " ".join((field.description or "").split())
        default = field.get_default(call_default_factory=True, validated_data={})
        sections = list(_sections(field.annotation))
        if not sections:
            type_name = " ".join([show_type(field.annotation), *_bounds(field.metadata)])
            yield ExplainedKey(key, type_name, show_value(default), text)
            continue
        many = get_origin(field.annotation) in (list, tuple)
        shown = show_value(default) if default in (None, PydanticUndefined) else ""
        yield ExplainedKey(key, "list of sections" if many else "section", shown, text)
        for section in sections:
            yield from explain(section, f"{key}[]." if many else f"{key}.")


def _explain_options(prefix: str) -> Iterator[ExplainedKey]:
    texts = attribute_docstrings(DecodeConfig)
    for name, option in OPTIONS.items():
        least, most = option.bounds or ("", "")
        bounds = f" >= {least} <= {most}" if option.bounds else ""
        kind, default = show_type(option.hint) + bounds, show_value(option.default)
        yield ExplainedKey(prefix + name, kind, default, texts[name])


def attribute_docstrings(cls: type) -> dict[str, str]:
    """Return the string below each annotated attribute; subclasses take precedence."""
    texts: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not owner.__module__.startswith("outrider."):
            continue
        (definition,) = ast.parse(inspect.getsource(owner)).body
        assert isinstance(definition, ast.ClassDef)
        for statement, below in zip(definition.body, [*definition.body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                texts.setdefault(statement.target.id, "")
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    texts[statement.target.id] = " ".join(str(below.value.value).split())
    return texts


def _apply(values: dict[str, Any], override: str) -> None:
    from outrider import yaml12

    key, equals, text = override.partition("=")
    *parents, last = parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(override, "an override is written key=value, for example train.steps=500")
    try:
        value = yaml12.parse(text) if text else ""
    except ValueError:
        value = text
    node = values
    for depth, parent in enumerate(parents, start=1):
        if node.get(parent) is None:
            node[parent] = {}
        child = node[parent]
        above = ".".join(parents[:depth])
        if isinstance(child, list):
            raise ConfigError(key, f"{above} is a list; set it whole: {above}=[...]")
        if not isinstance(child, dict):
            raise ConfigError(
                key, f"{above} is the single value {child!r}, it has no keys below it"
            )
        node = child
    node[last] = value


def _as_config_error(
    cls: type[Config], values: Any, error: ValidationError, prefix: str
) -> ConfigError:
    """Convert pydantic's errors to one; misspelt keys come first, since they cause others."""
    details = error.errors(include_url=False)
    first = min(details, key=lambda d: d["type"] not in ("extra_forbidden", "invalid_key"))
    kind, path = first["type"], _typed_path(values, first)
    key = prefix + ".".join(path) if path else prefix.rstrip(".") or "config"
    if kind == "extra_forbidden":
        return ConfigError(key, _unknown_key(cls, path))
    if kind == "missing":
        return ConfigError(key, "is required; add it to the config or pass it as key=value")
    if kind.startswith("union_tag"):
        name = first["ctx"]["discriminator"].strip("'")
        tags = " or ".join(show_type(o.model_fields[name].annotation) for o in _owners(cls, path))
        got = f"got {first['ctx']['tag']!r}" if "tag" in first["ctx"] else "is required"
        return ConfigError(f"{key}.{name}", f"{got}, expected {tags}")
    if kind in ("value_error", "assertion_error"):
        return ConfigError(key, " ".join(str(first["ctx"]["error"]).split()))
    same = [detail for detail in details if _typed_path(values, detail) == path]
    expected = " or ".join(dict.fromkeys(_expected(detail) for detail in same))
    return ConfigError(key, f"got {short.repr(first['input'])}, expected {expected}")


def _typed_path(values: Any, detail: ErrorDetails) -> list[str]:
    """Return the keys as typed; pydantic's path also names members of unions."""
    path = []
    for part in detail["loc"]:
        if _holds(values, part):
            values = values[part]
            name = str(part)
            path.append(name if name and name.isprintable() else repr(name))
    if detail["type"] == "missing":
        path.append(str(detail["loc"][-1]))
    return path


def _holds(values: Any, part: int | str) -> bool:
    if isinstance(values, Mapping):
        return part in values
    return isinstance(values, list | tuple) and isinstance(part, int) and part < len(values)


def _unknown_key(cls: type[Config], path: list[str]) -> str:
    accepted = sorted({name for owner in _owners(cls, path[:-1]) for name in owner.model_fields})
    hint = nearest(path[-1], accepted)
    if not hint:
        elsewhere = [field.key for field in explain(cls) if field.key.endswith(f".{path[-1]}")]
        hint = f" (did you mean {elsewhere[0]!r}?)" if elsewhere else ""
    return f"unknown key{hint}; accepted here: {', '.join(accepted)}"


def _expected(detail: ErrorDetails) -> str:
    if detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "a section of `key: value` lines"
    if detail["type"] == "invalid_key":
        return "a key that is text"
    message = detail["msg"].removeprefix("Input should be ")
    if detail["type"] == "string_type" and isinstance(detail["input"], bool | int | float):
        message += " (put it in quotes)"
    return message


def _owners(cls: type[Config], path: Iterable[str]) -> list[type[Config]]:
    """Return the config classes of the section at `path`."""
    owners = [cls]
    for name in path:
        if not name.isdigit():
            fields = [owner.model_fields[name] for owner in owners if name in owner.model_fields]
            owners = [section for field in fields for section in _sections(field.annotation)]
    return owners


def _sections(annotation: Any) -> Iterator[type[Any]]:
    """Yield the config classes in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Config | DecodeConfig):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)


def show_type(annotation: Any) -> str:
    """Return the name of a type in YAML terms."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " | ".join(show_type(argument) for argument in arguments)
    if origin is Literal:
        return " | ".join(show_value(argument) for argument in arguments)
    if origin is Annotated:
        return " ".join([show_type(arguments[0]), *_bounds(arguments[1:])])
    if origin is dict:
        return "mapping"
    if origin is not None:
        inside = ", ".join(show_type(a) for a in arguments if a is not Ellipsis)
        return f"{'list' if origin is tuple else origin.__name__}[{inside}]"
    if annotation is type(None):
        return "null"
    if isinstance(annotation, type) and issubclass(annotation, Path):
        return "path"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " | ".join(show_value(member.value) for member in annotation)
    return getattr(annotation, "__name__", str(annotation))


def _bounds(metadata: Iterable[Any]) -> list[str]:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    limits = [limit for item in metadata for limit in getattr(item, "metadata", [item])]
    return [
        f"{sign} {getattr(limit, name)}"
        for limit in limits
        for name, sign in signs.items()
        if hasattr(limit, name)
    ]


def show_value(value: Any) -> str:
    """Return a value on one line, as after `key=`."""
    from outrider import yaml12

    if value is PydanticUndefined:
        return "required"
    plain = to_jsonable_python(value, inf_nan_mode="constants")
    shown = yaml12.dump(plain, flow=True)
    return json.dumps(plain, ensure_ascii=False) if "\n" in shown else shown  # JSON is YAML too
