"""Sampling by the inverse of the cumulative distribution.

    m_c = exp((z_c - max z) / temperature)          mass of index c
    the sample is the first c with m_1 + ... + m_c >= (1 - u) (m_1 + ... + m_C)

All in float64. The maximum is subtracted before the division, so that any temperature is safe: near
zero only the largest scores have mass, and a score of minus infinity never has. 1 - u is in (0, 1],
so a sampled index has mass. Scores are numpy arrays or PyTorch tensors; PyTorch is not imported.
"""

from typing import Any, TypeVar

import numpy as np

ArrayT = TypeVar("ArrayT")


def masses(score: ArrayT, temperature: float = 1.0) -> ArrayT:
    """Return the mass of each index, [..., C], at most 1 each; their sum is not 1."""
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
    """Return the indices, [..., N], of uniform numbers in [0, 1), [..., N]; masses need no total.

    Smaller sums are counted instead of searched, so that NaN cannot give an index out of range.
    """
    cumulative: Any = mass.cumsum(-1)  # type: ignore[attr-defined]
    level = (1 - uniform) * cumulative[..., -1:]  # type: ignore[operator]
    below = cumulative[..., None, :-1] < level[..., :, None]
    places: ArrayT = below.sum(-1)
    return places
