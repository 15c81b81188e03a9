"""Sampling with temperature, top-k and top-p, and the random numbers of a row."""

from typing import Any

import numpy as np

from outrider.decoding.arrays import Array, add_at, pick, sort_down, top
from outrider.inverse_cdf import invert, masses
from outrider.options import Sampling


def choose(logits_BV: Array, uniform_B1: Array, sampling: Sampling) -> Array:
    """Map a uniform number in [0, 1) to a token id, [B, 1], by the inverse distribution."""
    mass_BV, ids_BV = _truncate(logits_BV, sampling)
    place_B1 = invert(mass_BV, uniform_B1)
    return place_B1 if ids_BV is None else pick(ids_BV, place_B1)


def distribution(logits: Array, sampling: Sampling) -> Array:
    """Return the probability of every token, [..., V] in float64."""
    mass, ids = _truncate(logits, sampling)
    prob = mass / mass.sum(-1)[..., None]
    return prob if ids is None else add_at(masses(logits) * 0, ids, prob)


def _truncate(logits: Array, sampling: Sampling) -> tuple[Array, Array | None]:
    """Return unnormalised masses of the remaining tokens, and their ids unless all in order."""
    ids = None
    limited = sampling.top_p is not None and sampling.top_p < 1  # as in the native core
    if sampling.top_k is not None:
        logits, ids = top(logits, sampling.top_k)
    elif limited:
        logits, ids = sort_down(logits)
    mass = masses(logits, sampling.temperature)
    if limited:
        # A token is kept if the mass before it is below top_p.
        prob = mass / mass.sum(-1)[..., None]
        mass = mass * (prob.cumsum(-1) - prob < sampling.top_p)
    return mass, ids


class Stream:
    """Reproducible numbers in [0, 1)."""

    def __init__(self, seed: int, *which: int) -> None:
        """Start from a seed; `which` distinguishes several streams of one seed."""
        self._generator = np.random.default_rng([seed, *which] if which else seed)

    def draw(self, *shape: int) -> Any:
        """Return the next numbers as nested lists."""
        return self._generator.random(shape).tolist()
