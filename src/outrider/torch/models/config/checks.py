"""What no model may ask of its attentions; each says itself what it can do."""

from typing import Any

from outrider.errors import ConfigError
from outrider.formats.description.checks import check_usual_score
from outrider.formats.description.choices import BIASES
from outrider.torch.models.config.base import ModelConfig
from outrider.torch.nn.attention import AttentionBase, build_attention, kinds_with, load_attention

__all__ = ["check_attentions"]


def check_attentions(config: ModelConfig) -> None:
    """Refuse attentions, and combinations of other keys with them, that no model can have."""
    _check_shared(config)
    for key, (layers, causal) in config.attention_keys.items():
        checked: list[dict[str, Any]] = []  # a thousand layers have few different attentions
        for index in range(0 if config.is_recurrent(key) else getattr(config, layers)):
            spec = config.layer_attention(key, index)
            if spec in checked[-2:]:
                continue
            checked.append(spec)
            attention = build_attention(spec, causal=causal, shape=config.head_shape, key=key)
            _check_columns(config, key, attention)
            _check_reversible(config, key, attention)


def _check_shared(config: ModelConfig) -> None:
    if config.depth != "shared":
        return
    for key in config.attention_keys:
        spec: dict[str, Any] = getattr(config, key) or {}
        if not config.is_recurrent(key):
            kind = spec.get("kind", "")
            load_attention(kind, key=f"{key}.kind").Config.check_shared(spec, key)
        if config.halting_config is not None:
            _check_halting(config, key, spec)


def _check_halting(config: ModelConfig, key: str, spec: dict[str, Any]) -> None:
    if config.is_recurrent(key):
        message = f"a {config.core_of(key)} reads every token, so none can halt; leave halting out"
        raise ConfigError(config.core_keys[key], message)
    kind = spec.get("kind", "")
    if not load_attention(kind, key=f"{key}.kind").Attention.halting_ok:
        expected = ", ".join(kinds_with("halting_ok"))
        message = f"{kind!r} cannot leave tokens out; with halting use {expected}"
        raise ConfigError(f"{key}.kind", message)
    check_usual_score(key, spec, "tokens that halt look with")
    if config.position_correlation:
        message = "needs a token's neighbours, which may have halted; use one of the two"
        raise ConfigError("position_correlation", message)


def _check_columns(config: ModelConfig, key: str, attention: AttentionBase) -> None:
    if config.position not in BIASES:
        return
    for part in attention.modules():
        if isinstance(part, AttentionBase) and not part.columns_ok:
            message = f"{part.kind!r} in {key} cannot be biased by {config.position!r}"
            message += "; use rotary"
            raise ConfigError("position", message)


def _check_reversible(config: ModelConfig, key: str, attention: AttentionBase) -> None:
    if config.residual == "reversible":
        for part in attention.modules():
            if isinstance(part, AttentionBase):
                part.check_reversible(key)
