"""The buckets of distances that T5's positions have a bias for (`nn.position.bucketed`)."""

import math

import numpy as np

__all__ = ["bucket_edges"]


def bucket_edges(buckets: int, distance: int) -> list[int]:
    """Return the distances at which the buckets of one side begin, but for the first, which is 0.

    So a distance is in the bucket of as many edges as are not above it.
    """
    exact = buckets // 2
    edges = list(range(1, exact + 1))
    for number in range(exact + 1, buckets):
        low, high = edges[-1], max(distance, edges[-1])  # the first that is far enough
        while low < high:
            middle = (low + high) // 2
            if _bucket(middle, buckets, distance) < number:
                low = middle + 1
            else:
                high = middle
        edges.append(low)
    return edges


def _bucket(far: int, buckets: int, distance: int) -> int:
    """Return the bucket of a distance beyond the exact ones.

    In float32 as the models were trained: a rounding decides where one begins.
    """
    exact = buckets // 2
    share = np.float32(math.log(np.float32(far) / np.float32(exact)))
    share = share / np.float32(math.log(distance / exact))
    return min(buckets - 1, exact + int(share * np.float32(buckets - exact)))
