"""The Transformer that every engine knows, and what a config has beyond it.

Whoever takes a model somewhere else (Marian, CTranslate2, the native core) can take plain layers:
full or causal attention with the usual score, sums and norms, a stack of different layers. A new
part of the family is listed here, and all of them refuse it by name.
"""

from typing import Any, NamedTuple

from outrider.models.config import LanguageModelConfig, Seq2SeqConfig

__all__ = ["Beyond", "beyond_plain"]

PLAIN: dict[str, Any] = {
    "encoder": None,
    "depth": "stacked",
    "residual": "add",
    "skip": None,
    "pair_attention": False,
    "position_correlation": 0,
    "position_mlp": 0,
    "memory": 0,
}


class Beyond(NamedTuple):
    """A key of a config that asks for more than a plain model has."""

    key: str
    value: Any
    plain: Any
    """What a plain model has there."""


def beyond_plain(config: Seq2SeqConfig | LanguageModelConfig) -> Beyond | None:
    """Return the first part of a model that is not plain; None where all are."""
    for key, plain in PLAIN.items():
        value = getattr(config, key, plain)
        if value != plain:
            return Beyond(key, value, plain)
    for key, (layers, causal) in config.attention_keys.items():
        if config.is_recurrent(key):
            return Beyond(config.core_keys[key], "gru", "attention")
        usual = {"kind": "causal" if causal else "full"}
        for layer in range(getattr(config, layers)):
            found = config.layer_attention(key, layer)
            if found != usual:
                return Beyond(key, found, usual)
    return None
