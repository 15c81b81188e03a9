"""Random numbers of one row, from its own seed."""

from typing import Any

import numpy as np

__all__ = ["Stream"]


class Stream:
    """Numbers in [0, 1): the same for the same seed, other ones for every other seed."""

    def __init__(self, seed: int, *which: int) -> None:
        """Begin with a seed; `which` tells several streams of one seed apart."""
        self._generator = np.random.default_rng([seed, *which] if which else seed)

    def draw(self, *shape: int) -> Any:
        """Return the next numbers as nested lists."""
        return self._generator.random(shape).tolist()
