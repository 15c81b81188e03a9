"""The frequencies of rotary positions, and how models stretched them to read longer texts.

    default   f_k = theta^(-2k/K)                          k = 0 ... K/2 - 1
    linear    f_k / factor
    llama3    f_k                       where a wave 2 pi / f_k is shorter than L / high
              f_k / factor              where it is longer than L / low
              between the two, with s = (L f_k / 2 pi - low) / (high - low):
              s f_k + (1 - s) f_k / factor

L is `original_max_position_embeddings`, low and high are `low_freq_factor` and `high_freq_factor`.
The names are those of Hugging Face's configs.
"""

import math
from collections.abc import Mapping
from typing import Any

from outrider.errors import ConfigError, nearest
from outrider.formats.description.base import ModelDescription

__all__ = ["check_rotary", "rotary_frequencies"]

THETA = 10_000.0
LARGEST = 1e12
OPTIONS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
}
"""The kinds of scaling that are known, and the numbers each needs."""


def check_rotary(config: ModelDescription) -> None:
    """Refuse a base or a scaling that frequencies cannot be computed from."""
    theta, scaling = config.rope_theta, config.rope_scale
    for key, value in {"rope_theta": theta, "rope_scale": scaling}.items():
        if value is not None and config.position != "rotary":
            message = f"has no effect on {config.position!r} positions; leave it out"
            raise ConfigError(key, message)
    if theta is not None and not 1 < theta <= LARGEST:
        raise ConfigError("rope_theta", f"got {theta}, expected above 1, at most {LARGEST:g}")
    if scaling is not None:
        _check_scaling(scaling)


def _check_scaling(scaling: Mapping[str, Any]) -> None:
    kind = scaling.get("rope_type")
    if not isinstance(kind, str) or kind not in OPTIONS:
        expected = ", ".join(OPTIONS)
        hint = nearest(kind, OPTIONS) if isinstance(kind, str) else ""
        message = f"unknown {repr(kind)[:80]}{hint}; expected one of {expected}"
        raise ConfigError("rope_scale.rope_type", message)
    wanted = OPTIONS[kind]
    for key in scaling:
        if key != "rope_type" and key not in wanted:
            message = f"unknown option of {kind!r}{nearest(key, wanted)}"
            raise ConfigError(f"rope_scale.{key}", message)
    for key in wanted:
        value = scaling.get(key)
        if type(value) not in (int, float) or not 0 < value <= LARGEST:  # type: ignore[operator]
            message = f"got {repr(value)[:80]}, expected a number above 0, at most {LARGEST:g}"
            raise ConfigError(f"rope_scale.{key}", message)
    if kind == "llama3" and not scaling["low_freq_factor"] < scaling["high_freq_factor"]:
        raise ConfigError("rope_scale.high_freq_factor", "must be above low_freq_factor")


def rotary_frequencies(config: ModelDescription) -> tuple[float, ...]:
    """Return by how much each pair of a head is turned from one position to the next."""
    width, theta = config.head_width, config.rope_theta or THETA
    scaling = config.rope_scale or {"rope_type": "default"}
    plain = [float(theta) ** (-2 * k / width) for k in range(width // 2)]
    return tuple(_scale(frequency, scaling) for frequency in plain)


def _scale(frequency: float, scaling: Mapping[str, Any]) -> float:
    if scaling["rope_type"] == "default":
        return frequency
    slow: float = frequency / scaling["factor"]
    if scaling["rope_type"] == "linear":
        return slow
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    waves = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    share: float = min(max((waves - low) / (high - low), 0.0), 1.0)
    return share * frequency + (1 - share) * slow
