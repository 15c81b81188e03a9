"""Attention variants. The file name is the config name: `kind: sliding` is `sliding.py`.

A new variant is one file here with a `Config` and an `Attention`, and one test. Configs, contract
tests, benchmarks and docs find it by its name. Files without an `Attention` hold shared code.
"""

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, get_type_hints

from outrider.config import keys_under
from outrider.errors import ConfigError, nearest
from outrider.formats.spec import check_type
from outrider.torch.nn.attention.base import AttentionBase, AttentionConfig, Cost, HeadShape

__all__ = [
    "AttentionBase",
    "AttentionConfig",
    "Cost",
    "HeadShape",
    "attention_kinds",
    "build_attention",
    "cross_options",
    "kinds_with",
    "load_attention",
]


def attention_kinds() -> list[str]:
    """Return the names accepted by `kind`: the files in this folder that define an `Attention`."""
    return [name for name in _files() if _variant(name) is not None]


def load_attention(kind: str, *, key: str = "attention.kind") -> ModuleType:
    """Import a variant by its name in a config."""
    variant = _variant(kind) if kind in _files() else None
    if variant is not None:
        return variant
    kinds = attention_kinds()
    raise ConfigError(key, f"unknown {kind!r}{nearest(str(kind), kinds)}; expected one of {kinds}")


def _files() -> list[str]:
    return sorted(module.name for module in iter_modules(__path__))


def _variant(name: str) -> ModuleType | None:
    """Import a file of this folder; None if it defines no variant."""
    module = import_module(f"{__name__}.{name}")
    own = vars(module).get("Attention")
    return module if getattr(own, "__module__", None) == module.__name__ else None


def kinds_with(flag: str) -> list[str]:
    """Return the kinds whose `Attention` sets a class flag, such as `halting_ok`."""
    return [kind for kind in attention_kinds() if getattr(load_attention(kind).Attention, flag)]


def build_attention(
    spec: Mapping[str, Any],
    *,
    causal: bool,
    dropout: float = 0.0,
    shape: HeadShape,
    key: str = "attention",
) -> AttentionBase:
    """Build an attention from `{kind: ..., option: ...}`, for an encoder or a decoder."""
    options = dict(spec)
    kind = options.pop("kind", None)
    variant = load_attention(kind, key=f"{key}.kind")
    _check_options(variant.Config, options, kind=kind, key=key)
    side, flag = ("a decoder", "causal_ok") if causal else ("an encoder", "two_sided_ok")
    if not getattr(variant.Attention, flag):
        raise ConfigError(
            f"{key}.kind", f"{kind!r} cannot be used in {side}; use one of {kinds_with(flag)}"
        )
    with keys_under(key, instead_of="attention"):
        attention: AttentionBase = variant.Attention(
            variant.Config(**options), causal=causal, dropout=dropout, shape=shape
        )
    return attention


def cross_options(spec: Mapping[str, Any], *, key: str = "cross_attention") -> AttentionConfig:
    """Build the config of cross-attention, which has no kind: it always sees the whole source."""
    options = dict(spec)
    _check_options(AttentionConfig, options, kind=key, key=key)
    with keys_under(key, instead_of="attention"):
        return AttentionConfig(**options)


def _check_options(
    config: type[AttentionConfig], options: dict[str, Any], *, kind: str, key: str
) -> None:
    """Check names and types of options, in place; whole numbers are accepted as floats."""
    hints = get_type_hints(config)
    known = {field.name: hints[field.name] for field in fields(config)}
    for name, value in options.items():
        if name not in known:
            accepted = ", ".join(sorted(known)) or "no options"
            hint = nearest(name, known)
            raise ConfigError(
                f"{key}.{name}", f"unknown option of {kind!r}{hint}; accepted: {accepted}"
            )
        check_type(f"{key}.{name}", value, known[name])
        if known[name] is float and isinstance(value, int):
            options[name] = float(value)
