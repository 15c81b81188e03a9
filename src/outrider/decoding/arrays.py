"""Operations on scores, for numpy arrays and for PyTorch tensors on their device.

CPU tensors are viewed as numpy arrays, whose calls cost less: argmax over a vocabulary takes a
tenth of PyTorch's time. GPU tensors stay on the GPU. Only tensor methods are used, so this package
does not import PyTorch.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any
"""A numpy array or a PyTorch tensor."""


def like(array: Array, values: object, dtype: str = "float64") -> Array:
    """Return numbers as an array of the same kind on the same device."""
    host = np.asarray(values, dtype=dtype)
    if isinstance(array, np.ndarray):
        return host
    tensor = array.new_tensor(host.tolist())
    return tensor.long() if dtype == "int64" else tensor.double()


def log_total(scores: Array) -> Array:
    """Return log sum exp over the last axis; the axis is kept."""
    if not isinstance(scores, np.ndarray):
        return scores.logsumexp(-1, keepdim=True)
    top = scores.max(-1, keepdims=True)
    return np.log(np.exp(scores - top).sum(-1, keepdims=True)) + top


def pick(array: Array, places: Array) -> Array:
    """Return the entries of the last axis at these places."""
    if isinstance(array, np.ndarray):
        return np.take_along_axis(array, places, -1)
    return array.gather(-1, places)


def top(scores: Array, count: int) -> tuple[Array, Array]:
    """Return the largest entries of the last axis and their places, largest first."""
    count = min(count, scores.shape[-1])
    if not isinstance(scores, np.ndarray):
        largest = scores.topk(count)
        return largest.values, largest.indices
    places = np.argpartition(scores, scores.shape[-1] - count, axis=-1)[..., -count:]
    places.sort(-1)  # the first of equal scores comes first
    values = np.take_along_axis(scores, places, -1)
    order = np.argsort(-values, axis=-1, kind="stable")
    return np.take_along_axis(values, order, -1), np.take_along_axis(places, order, -1)


def sort_down(scores: Array) -> tuple[Array, Array]:
    """Return the entries of the last axis and their places, largest first."""
    if not isinstance(scores, np.ndarray):
        ordered = scores.sort(dim=-1, descending=True, stable=True)
        return ordered.values, ordered.indices
    places = np.argsort(-scores, axis=-1, kind="stable")
    return np.take_along_axis(scores, places, -1), places


def where(condition: Array, yes: Array, no: Array) -> Array:
    """Choose entry by entry; `no` is an array of the same kind."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return no.where(~condition, yes)


def add_at(array: Array, places: Array, values: Array) -> Array:
    """Return a copy with values added at distinct places of the last axis."""
    if not isinstance(array, np.ndarray):
        return array.scatter_add(-1, places, values)
    array = array.copy()
    np.put_along_axis(array, places, np.take_along_axis(array, places, -1) + values, -1)
    return array


def forbid(scores: Array, tokens: Sequence[int]) -> None:
    """Write minus infinity over tokens of `scores` [..., V], in place."""
    for token in tokens:  # for few tokens a loop is ten times faster than one indexed write
        scores[..., token] = -math.inf


def cast(array: Array, other: Array) -> Array:
    """Return an array in the number format of another."""
    return array.astype(other.dtype) if isinstance(array, np.ndarray) else array.to(other.dtype)
