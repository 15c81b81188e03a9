"""Quantised weights, stored beside their scales in a safetensors file.

    int8    (rows, width)        and X_scale (rows,) float32: one number a byte, one scale a row
    int4    (rows, width / 2)    and X_scale (rows, width / 32) float16: two numbers a byte, the
            first in its lower half, each plus 8; one scale for 32 numbers

int8 rows are rounded as the native core rounds float32, so that products are equal for both files;
embeddings differ by that rounding. int4 is for embedding tables and feed-forwards, which are
widened before use.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ConfigError, ModelError
from outrider.formats.safetensors import GROUP, Weight

INT8, INT4 = "int8", "int4"
TABLES = ("tokens.weight", "source_tokens.weight", "head.weight")
"""Weights with a row for every token."""
EMBEDDINGS, FEEDFORWARD = "embeddings", "feedforward"
"""Parts of a model that may be int4: `TABLES`, and both products of every feed-forward."""
SCALE = "_scale"
"""Suffix of the name of a weight's scales."""
STEPS = (
    tuple(range(-8, 0))
    + tuple(range(1, 8))
    + tuple(-8 / share for share in (0.95, 0.9, 0.85, 0.8, 0.75))
)
"""Candidates for the quantised value of a group's largest number: whole numbers, which reproduce
weights that were rounded before, and numbers below -8, which clip the largest number and round the
others better."""

FloatArray = NDArray[np.float32]


def int8_rows(array: FloatArray) -> tuple[NDArray[np.int8], FloatArray]:
    """Round every row of a matrix to whole numbers from -127 to 127, times its scale."""
    scale = np.abs(array).max(1).astype(np.float32) / np.float32(127)
    scale[scale == 0] = 1
    return np.clip(np.rint(array / scale[:, None]), -127, 127).astype(np.int8), scale


def int4_groups(array: FloatArray) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Round groups of 32 numbers to whole numbers from -8 to 7, times their scale."""
    rows, width = array.shape
    groups = array.reshape(rows, width // GROUP, GROUP).astype(np.float32)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(2)[..., None], 2)
    best = np.zeros(groups.shape, np.int8)
    scales = np.ones(largest.shape, np.float16)
    least = np.full(largest.shape, np.inf, np.float32)
    for step in STEPS:
        scale = (largest / np.float32(step)).astype(np.float16)
        scale[scale == 0] = 1
        wide = scale.astype(np.float32)
        whole = np.clip(np.rint(groups / wide), -8, 7)
        error = np.square(whole * wide - groups).sum(2, keepdims=True)
        better = error < least
        best = np.where(better, whole.astype(np.int8), best)
        scales, least = np.where(better, scale, scales), np.where(better, error, least)
        if not least.any():
            break
    halves = (best.reshape(rows, width) + 8).astype(np.uint8)
    return halves[:, ::2] | (halves[:, 1::2] << np.uint8(4)), scales[..., 0]


def check_parts(int4: Collection[str]) -> None:
    """Refuse names of parts that cannot be int4."""
    known = (EMBEDDINGS, FEEDFORWARD)
    for name in int4:
        if name not in known:
            raise ConfigError("int4", f"got {name!r}, expected {' or '.join(known)}")


def is_int4(name: str, parts: Collection[str]) -> bool:
    """Whether a weight belongs to parts that are int4."""
    table, product = name in TABLES, ".feedforward." in name
    return (table and EMBEDDINGS in parts) or (product and FEEDFORWARD in parts)


def check_width(name: str, width: int) -> None:
    """Refuse a width that is not a multiple of the int4 group."""
    if width % GROUP:
        message = f"needs widths that are a multiple of {GROUP}, {name!r} has {width}"
        raise ConfigError("int4", f"{message}; leave it out")


def with_scales(folder: Path, weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """Join quantised weights with their scales."""
    joined = dict(weights)
    for name in [name for name in weights if name + SCALE in weights]:
        weight, scale = weights[name], joined.pop(name + SCALE).data
        kind = _kind(weight.data, scale)
        if kind is None:
            shapes = f"{list(weight.data.shape)} {weight.kind}, {list(scale.shape)} {scale.dtype}"
            raise ModelError(f"{folder}: {name[:80]!r} and its scales do not match: {shapes}")
        if not np.isfinite(scale).all():
            raise ModelError(f"{folder}: a scale of {name[:80]!r} is not finite")
        joined[name] = Weight(kind, weight.data, scale)
    return joined


def _kind(data: NDArray[Any], scale: NDArray[Any]) -> str | None:
    """Return the number type of quantised data with these scales; None if unknown."""
    if data.ndim != 2:
        return None
    rows, width = data.shape
    if data.dtype == np.int8 and scale.dtype == np.float32 and scale.shape == (rows,):
        return INT8
    groups = (rows, 2 * width // GROUP)
    whole = 2 * width % GROUP == 0
    if data.dtype == np.uint8 and scale.dtype == np.float16 and whole and scale.shape == groups:
        return INT4
    return None
