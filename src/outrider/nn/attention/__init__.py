"""Attention variants. The file name is the config name: `kind: sliding` is `sliding.py`.

A new variant is one file here with a `Config` and an `Attention`, and one test. It then works in
every config, and the contract tests, the benchmark and the docs find it by its name.
"""

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from outrider.errors import ConfigError, nearest
from outrider.nn.attention.base import AttentionBase, AttentionConfig, Cost, HeadShape

__all__ = [
    "AttentionBase",
    "AttentionConfig",
    "Cost",
    "HeadShape",
    "attention_kinds",
    "build_attention",
    "load_attention",
]


def attention_kinds() -> list[str]:
    """Names accepted by `kind`, read from the files in this folder."""
    return sorted(module.name for module in iter_modules(__path__) if module.name != "base")


def load_attention(kind: str, *, key: str = "attention.kind") -> ModuleType:
    """Import a variant of this folder; a config can name nothing else."""
    kinds = attention_kinds()
    if kind in kinds:
        return import_module(f"{__name__}.{kind}")
    raise ConfigError(key, f"unknown {kind!r}{nearest(str(kind), kinds)}; expected one of {kinds}")


def build_attention(
    spec: Mapping[str, Any],
    *,
    causal: bool,
    dropout: float = 0.0,
    shape: HeadShape,
    key: str = "attention",
) -> AttentionBase:
    """Build the variant that `{kind: ..., option: ...}` describes, for an encoder or a decoder."""
    options = dict(spec)
    kind = options.pop("kind", None)
    variant = load_attention(kind, key=f"{key}.kind")
    known = {field.name: field for field in fields(variant.Config)}
    for name, value in options.items():
        if name not in known:
            accepted = ", ".join(sorted(known)) or "no options"
            hint = nearest(name, known)
            raise ConfigError(
                f"{key}.{name}", f"unknown option of {kind!r}{hint}; accepted: {accepted}"
            )
        wanted = known[name].type
        if isinstance(wanted, type) and (
            not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool)
        ):
            raise ConfigError(f"{key}.{name}", f"got {value!r}, expected {wanted.__name__}")
    side, able = ("a decoder", "causal_ok") if causal else ("an encoder", "two_sided_ok")
    if not getattr(variant.Attention, able):
        able_kinds = [k for k in attention_kinds() if getattr(load_attention(k).Attention, able)]
        raise ConfigError(
            f"{key}.kind", f"{kind!r} cannot stand in {side}; use one of {able_kinds}"
        )
    try:
        attention: AttentionBase = variant.Attention(
            variant.Config(**options), causal=causal, dropout=dropout, shape=shape
        )
    except ConfigError as error:  # a variant does not know under which key it was asked for
        message = str(error).removeprefix(f"{error.key}: ")
        raise ConfigError(key + error.key.removeprefix("attention"), message) from None
    return attention
