"""What no model may ask for, whichever it is; a config is untrusted input."""

from collections.abc import Mapping
from typing import Any

from outrider.errors import ConfigError, nearest
from outrider.formats.description.base import AttentionSpec, ModelDescription
from outrider.formats.description.choices import (
    ACTIVATIONS,
    BUCKET_LIMIT,
    CHUNK_LIMIT,
    CORES,
    DEPTHS,
    ENCODER_CORES,
    EVEN_POSITIONS,
    GATE_LIMIT,
    LAYER_LIMIT,
    LIMITS,
    NEIGHBOUR_LIMIT,
    NORMS,
    POSITION_LIMIT,
    POSITIONS,
    RESIDUALS,
    TRANSITIONS,
)
from outrider.formats.description.rotary import check_rotary

__all__ = ["check_model", "check_usual_score"]

NEIGHBOURLESS = {
    "halting": "may have halted",
    "skip": "may be skipped",
    "memory": "it cannot find in a memory",
}
"""Keys with which a token may have no neighbours, and why."""


def check_model(config: ModelDescription) -> None:
    """Refuse sizes, words and combinations of them that no model can be built from."""
    _check_sizes(config)
    _check_choices(config)
    _check_depth(config)
    _check_transition(config)
    _check_pondering(config)
    _check_tokens(config)
    check_rotary(config)
    _check_buckets(config)
    for key, (layers, _) in config.attention_keys.items():
        if not config.is_recurrent(key) and getattr(config, layers):
            config.layer_attention(key, 0)  # as many as there are layers


def _check_sizes(config: ModelDescription) -> None:
    limits = LIMITS | dict.fromkeys(config.layer_keys, LAYER_LIMIT)
    limits["max_positions"] = POSITION_LIMIT
    for key, limit in limits.items():
        value = getattr(config, key)
        if not 1 <= value <= limit:
            raise ConfigError(key, f"got {value}, expected 1 to {limit}")
    for key in ("position_correlation", "position_mlp"):
        if not 0 <= getattr(config, key) <= NEIGHBOUR_LIMIT:
            message = f"got {getattr(config, key)}, expected 0 to {NEIGHBOUR_LIMIT}"
            raise ConfigError(key, message)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    _check_heads(config)
    if config.position in EVEN_POSITIONS:
        for part, width in (("head", config.head_width), ("model", config.hidden_size)):
            if width % 2:
                message = f"{config.position!r} needs an even {part} width, not {width}"
                raise ConfigError("position", message)
    _check_codes(config)
    if kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
        message = f"got {kv_heads}, which does not divide num_attention_heads {heads}"
        raise ConfigError("num_key_value_heads", message)


def _check_heads(config: ModelDescription) -> None:
    heads, width, limit = config.num_attention_heads, config.head_dim, LIMITS["hidden_size"]
    if width is None and (heads < 1 or config.hidden_size % heads):
        message = f"got {heads}, which does not divide hidden_size {config.hidden_size}"
        raise ConfigError("num_attention_heads", message)
    if heads < 1:
        raise ConfigError("num_attention_heads", f"got {heads}, expected 1 or more")
    if width is not None and not 1 <= width * heads <= limit:
        message = f"got {width}, and {heads} heads of it are not 1 to {limit} wide"
        raise ConfigError("head_dim", message)


def _check_buckets(config: ModelDescription) -> None:
    known = {"relative_buckets": ("bucketed",), "relative_distance": ("bucketed", "distance")}
    for key, positions in known.items():
        if getattr(config, key) is not None and config.position not in positions:
            message = f"has no effect on {config.position!r} positions; leave it out"
            raise ConfigError(key, message)
    if config.position == "distance":
        _check_plain_pairs(config)
        farthest = config.relative_distance
        if farthest is not None and not 1 <= farthest <= BUCKET_LIMIT:
            message = f"got {farthest}, expected 1 to {BUCKET_LIMIT}"
            raise ConfigError("relative_distance", message)
    if config.position != "bucketed":
        return
    buckets, distance = config.buckets
    if not 4 <= buckets <= BUCKET_LIMIT or buckets % 4:
        message = f"got {buckets}, expected a multiple of 4 up to {BUCKET_LIMIT}"
        raise ConfigError("relative_buckets", message)
    if not buckets // 2 < distance <= POSITION_LIMIT:
        message = f"got {distance}, expected above {buckets // 2}, at most {POSITION_LIMIT}"
        raise ConfigError("relative_distance", message)
    _check_plain_pairs(config)


def _check_plain_pairs(config: ModelDescription) -> None:
    """Refuse what computes no score for every pair, to which something could be added."""
    position = config.position
    for key in ("halting", "skip"):
        if getattr(config, key, None) is not None:
            raise ConfigError("position", f"{position!r} does not go with {key}; use rotary")
    if config.residual == "reversible":
        message = f"{position!r} does not go with residual: reversible; use rotary"
        raise ConfigError("position", message)
    for key in config.attention_keys:
        if config.is_recurrent(key):
            continue
        specs = getattr(config, key)
        for spec in specs if isinstance(specs, list) else [specs or {}]:
            if set(spec) - {"kind"} or spec.get("kind") not in ("causal", "full"):
                message = f"{position!r} goes with plain full and causal attention; use rotary"
                raise ConfigError("position", message)


def _check_codes(config: ModelDescription) -> None:
    codes = config.relative_codes
    if codes is None:
        return
    if config.position != "relative":
        message = f"has no effect on {config.position!r} positions; leave it out"
        raise ConfigError("relative_codes", message)
    limit = LIMITS["hidden_size"]
    if not 2 <= codes <= limit or codes % 2:
        message = f"got {codes}, expected an even number from 2 to {limit}"
        raise ConfigError("relative_codes", message)


def _check_choices(config: ModelDescription) -> None:
    choices = {
        "activation": ACTIVATIONS,
        "norm": NORMS,
        "residual": RESIDUALS,
        "transition": TRANSITIONS,
        "depth": DEPTHS,
        "position": POSITIONS,
    }
    for attention, key in config.core_keys.items():
        choices[key] = CORES if config.attention_keys[attention][1] else ENCODER_CORES
    for key, accepted in choices.items():
        value = getattr(config, key)
        if value not in accepted:
            expected = ", ".join(accepted)
            hint = nearest(value, accepted)
            raise ConfigError(key, f"unknown {value!r}{hint}; expected one of {expected}")
    for key in ("dropout", "attention_dropout", "activation_dropout"):
        if not 0 <= getattr(config, key) < 1:
            raise ConfigError(key, f"got {getattr(config, key)}, expected 0 to less than 1")
    if not 0 < config.norm_eps < 1:
        raise ConfigError("norm_eps", f"got {config.norm_eps}, expected above 0, less than 1")
    _check_residual(config)


def _check_residual(config: ModelDescription) -> None:
    if config.residual != "add" and config.norm != "pre":
        message = f"{config.norm!r} does not go with residual: {config.residual}; use pre"
        raise ConfigError("norm", message)
    if not 1 <= config.feedforward_chunks <= CHUNK_LIMIT:
        message = f"got {config.feedforward_chunks}, expected 1 to {CHUNK_LIMIT}"
        raise ConfigError("feedforward_chunks", message)
    if config.gate_bias is None:
        return
    if config.residual != "gru":
        message = f"has no effect on residual: {config.residual}; leave it out"
        raise ConfigError("gate_bias", message)
    if not -GATE_LIMIT <= config.gate_bias <= GATE_LIMIT:
        message = f"got {config.gate_bias}, expected {-GATE_LIMIT:g} to {GATE_LIMIT:g}"
        raise ConfigError("gate_bias", message)


def _check_depth(config: ModelDescription) -> None:
    if config.depth != "shared":
        if config.halting is not None:
            raise ConfigError("halting", "is for one layer that is repeated; add depth: shared")
        return
    if config.residual == "reversible":
        raise ConfigError("residual", "depth: shared has one layer to go back to; use add or gru")
    for key in config.attention_keys:
        spec: AttentionSpec = getattr(config, key) or {}
        if isinstance(spec, list):
            raise ConfigError(key, "depth: shared has one layer; give one attention, no list")


def _check_transition(config: ModelDescription) -> None:
    widths, key = config.transition_widths, "transition_widths"
    if config.transition == "feedforward":
        if widths is not None:
            raise ConfigError(key, "has no effect on a feedforward; add transition: separable_conv")
        return
    if widths is not None and not _are_two_widths(widths):
        message = f"got {widths}, expected two numbers from 1 to {NEIGHBOUR_LIMIT}"
        raise ConfigError(key, message)
    if config.feedforward_chunks != 1:
        message = "cuts texts where a separable_conv looks across; leave it out, or use transition:"
        raise ConfigError("feedforward_chunks", f"{message} feedforward")
    for other, neighbours in NEIGHBOURLESS.items():
        if getattr(config, other, None) not in (None, 0):
            message = f"separable_conv looks at neighbours, which {neighbours}; leave {other} out"
            raise ConfigError("transition", f"{message}, or use feedforward")


def _check_pondering(config: ModelDescription) -> None:
    if config.pondering is None:
        return
    if not {config.core_of(key) for key in config.core_keys} & {"gru", "lstm"}:
        keys = " or ".join(config.core_keys.values())
        message = f"is for cells that read their own state; set {keys} to gru, or leave it out"
        raise ConfigError("pondering", message)
    if config.depth == "shared":
        raise ConfigError("pondering", "depth: shared repeats whole layers already; use stacked")
    if config.residual == "reversible":
        message = "its cost is lost where the backward computes layers again; with residual:"
        raise ConfigError("pondering", f"{message} reversible leave it out, or use add or gru")


def _are_two_widths(widths: list[int]) -> bool:
    return len(widths) == 2 and all(1 <= width <= NEIGHBOUR_LIMIT for width in widths)


def _check_tokens(config: ModelDescription) -> None:
    """Refuse special tokens that there is no embedding for."""
    for key in ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"):
        value = getattr(config, key, None)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if isinstance(value, list) and not value:
            raise ConfigError(key, "is an empty list; give at least one token")
        for token in ids:
            if not 0 <= token < config.vocab_size:
                message = f"got {token}, but the vocabulary has {config.vocab_size} tokens"
                raise ConfigError(key, message)


def check_usual_score(key: str, spec: Mapping[str, Any], why: str) -> None:
    """Refuse scores and normalisers that only whole passes and caches know how to compute."""
    usual = {"score": ("scaled_dot", "dot"), "normaliser": ("softmax",)}
    for option, known in usual.items():
        if spec.get(option, known[0]) not in known:
            raise ConfigError(f"{key}.{option}", f"{why} {known[0]}; leave {option} out")
