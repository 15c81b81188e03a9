"""A memory of fixed size for what was seen before.

Pairs are remembered by 64-bit hashes in buckets of eight; a full bucket forgets its oldest. So a
fresh pair is taken for a duplicate with a probability of about 1e-19 per remembered pair, and a
duplicate is missed only if far more pairs came between than the table holds.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

__all__ = ["SeenBefore"]

WAYS = 8


class SeenBefore:
    """Says of texts, many at a time, which ones came before."""

    def __init__(self, megabytes: int) -> None:
        self._buckets = (megabytes << 20) // (8 * WAYS)
        self._table = np.zeros((self._buckets, WAYS), np.uint64)
        self._next = np.zeros(self._buckets, np.uint8)

    def __call__(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Mark the texts seen earlier, here or in a former call, and remember the others."""
        digests = b"".join(blake2b(text.encode(), digest_size=8).digest() for text in texts)
        hashes = np.frombuffer(digests, np.uint64)
        fresh, first = np.unique(hashes, return_index=True)
        known = (self._table[self._bucket(fresh)] == fresh[:, None]).any(axis=1)
        self._remember(fresh[~known])
        seen = np.ones(len(texts), np.bool_)
        seen[first[~known]] = False
        return seen

    def _bucket(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return hashes % np.uint64(self._buckets)

    def _remember(self, hashes: NDArray[np.uint64]) -> None:
        while len(hashes):
            # One newcomer a bucket and round, so that none overwrites another.
            buckets, first = np.unique(self._bucket(hashes), return_index=True)
            self._table[buckets, self._next[buckets]] = hashes[first]
            self._next[buckets] = (self._next[buckets] + 1) % WAYS
            hashes = np.delete(hashes, first)
