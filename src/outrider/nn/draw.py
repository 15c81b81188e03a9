"""Drawing by the inverse of the cumulative distribution: a uniform number becomes a place.

    m_c = exp((z_c - max z) / temperature)          the mass of place c
    the place drawn is the first c with m_1 + ... + m_c >= (1 - u) (m_1 + ... + m_C)

All in float64, and the differences before the quotient: with a temperature near zero only the best
places keep mass, with a huge one all have the same, and a score of minus infinity never has any.
1 - u lies in (0, 1], so a place that is drawn has mass.
"""

from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["invert", "masses"]

ArrayT = TypeVar("ArrayT", Tensor, NDArray[Any])


@overload
def masses(score: Tensor, temperature: float = ...) -> Tensor: ...
@overload
def masses(score: NDArray[Any], temperature: float = ...) -> NDArray[Any]: ...
def masses(score: Tensor | NDArray[Any], temperature: float = 1.0) -> Tensor | NDArray[Any]:
    """Return the mass of each place, [..., C], at most 1 each; their sum is not 1."""
    if isinstance(score, Tensor):
        score = score.double()
        return ((score - score.amax(-1, keepdim=True)) / temperature).exp()
    score = score.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # as torch does: infinite, or NaN
        mass: NDArray[Any] = np.exp((score - score.max(-1, keepdims=True)) / temperature)
    return mass


def invert(mass: ArrayT, uniform: ArrayT) -> ArrayT:
    """Return the places, [..., N], that numbers in [0, 1), [..., N], fall on; any total will do.

    Counted, not searched for: what is no number then counts for nothing, and no place lies outside.
    """
    cumulative = mass.cumsum(-1)
    level = (1 - uniform) * cumulative[..., -1:]
    below: ArrayT = cumulative[..., None, :-1] < level[..., :, None]
    return below.sum(-1)
