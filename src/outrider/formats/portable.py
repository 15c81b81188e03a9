"""Portable models: the Transformer that every engine knows.

Whoever takes a model somewhere else (Marian, CTranslate2, the native core) supports these layers:
full or causal attention with the usual score, sums and norms, a stack of different layers. A new
part of the family is listed here, and all of them refuse it by name.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from outrider.formats.description import ModelDescription

__all__ = ["Unsupported", "core_of", "first_unsupported"]

PORTABLE: dict[str, Any] = {
    "encoder": None,
    "depth": "stacked",
    "transition": "feedforward",
    "residual": "add",
    "skip": None,
    "pair_attention": False,
    "cross_attention": None,
    "position_correlation": 0,
    "position_mlp": 0,
    "memory": 0,
}
PLAIN: dict[str, Any] = {
    "rms_norm": False,
    "norm_eps": 1e-5,
    "embedding_norm": False,
    "right_to_left": False,
}
"""What the exports have beside it; engines of ours know other values too."""


class Unsupported(NamedTuple):
    """A key of a config that asks for more than a portable model has."""

    key: str
    value: Any
    portable: Any
    """What a portable model has there."""


def core_of(config: ModelDescription) -> str:
    """Return what decoder layers know the tokens before by."""
    key = next(key for key, (_, causal) in config.attention_keys.items() if causal)
    return config.core_of(key)


def first_unsupported(
    config: ModelDescription, *, plain: bool = True, cores: Sequence[str] = ("attention",)
) -> Unsupported | None:
    """Return the first part of a model that is not portable; None where all are.

    Without `plain` norms and widths of other families may be there too, and `cores` may stand where
    self-attention does.
    """
    for key, portable in (PORTABLE | PLAIN if plain else PORTABLE).items():
        value = getattr(config, key, portable)
        if value != portable:
            return Unsupported(key, value, portable)
    usual_width, odd = divmod(config.hidden_size, config.num_attention_heads)
    if plain and (odd or config.head_width != usual_width):
        return Unsupported("head_dim", config.head_dim, usual_width)
    for key, (layers, causal) in config.attention_keys.items():
        core = config.core_of(key)
        if core not in cores:
            return Unsupported(config.core_keys[key], core, cores[0])
        if core != "attention":
            continue
        usual = {"kind": "causal" if causal else "full"}
        for layer in range(getattr(config, layers)):
            found = config.layer_attention(key, layer)
            if found != usual:
                return Unsupported(key, found, usual)
    return None
