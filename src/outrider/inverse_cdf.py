"""Drawing by the inverse of the cumulative distribution: a uniform number becomes a place.

    m_c = exp((z_c - max z) / temperature)          the mass of place c
    the place drawn is the first c with m_1 + ... + m_c >= (1 - u) (m_1 + ... + m_C)

All in float64, and the differences before the quotient: with a temperature near zero only the best
places keep mass, with a huge one all have the same, and a score of minus infinity never has any.
1 - u lies in (0, 1], so a place that is drawn has mass.

Scores are numpy arrays or PyTorch tensors; nothing here imports PyTorch.
"""

from typing import Any, TypeVar

import numpy as np

__all__ = ["invert", "masses"]

ArrayT = TypeVar("ArrayT")


def masses(score: ArrayT, temperature: float = 1.0) -> ArrayT:
    """Return the mass of each place, [..., C], at most 1 each; their sum is not 1."""
    z: Any = score
    if not isinstance(z, np.ndarray):
        z = z.double()
        mass: ArrayT = ((z - z.amax(-1, keepdim=True)) / temperature).exp()
        return mass
    z = z.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # as torch does: infinite, or NaN
        z -= z.max(-1, keepdims=True)
        z /= temperature
        return np.exp(z, out=z)


def invert(mass: ArrayT, uniform: ArrayT) -> ArrayT:
    """Return the places, [..., N], that numbers in [0, 1), [..., N], fall on; any total will do.

    Counted, not searched for: a NaN then counts for nothing, and no place lies outside.
    """
    cumulative: Any = mass.cumsum(-1)  # type: ignore[attr-defined]
    level = (1 - uniform) * cumulative[..., -1:]  # type: ignore[operator]
    below = cumulative[..., None, :-1] < level[..., :, None]
    places: ArrayT = below.sum(-1)
    return places
