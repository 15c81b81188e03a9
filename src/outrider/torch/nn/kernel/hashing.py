"""Hashing by random rotations (Andoni et al., 2015, arXiv:1509.02897).

    h(x) = argmax [x R ; -x R]        R drawn once: [K, N/2] for N buckets

Similar directions are likely to share a bucket. A round is one R; all tensors here have a dimension
for R rounds. Tokens are sorted by (bucket, position). In that order each token gets a `code` such
that query i finds key j in a round if 0 <= code_i - code_j < reach.

    causal    code = place + m bucket          reach m    the last m tokens of the own bucket
    chunked   code = place div m + 2 bucket    reach 2    the own bucket, in the own chunk of m and
                                                          the one before
"""

from typing import NamedTuple

import torch
from torch import Tensor

TOKENS = 1 << 10
"""Tokens of a row that are hashed at once."""

SMALLEST = 8
"""Minimum slots of a block, for efficient matrix products."""


class Layout(NamedTuple):
    """Slots of the sorted tokens, in blocks, so that a query's keys are in few blocks."""

    slot_RBHT: Tensor
    """Slot of every token; other slots are empty."""
    code_RBHT: Tensor
    """Non-negative integers, stored as floats."""
    reach: int
    slots: int
    block: int
    """Slots of a block."""
    back: int
    """Earlier blocks that a query reads."""

    def apart(self, code_i: Tensor, code_j: Tensor) -> Tensor:
        """Return the distance of key j from the middle of query i's range; codes broadcast."""
        return (code_i - (code_j + self.half)).abs_()

    def found(self, code_i: Tensor, code_j: Tensor) -> Tensor:
        """Return whether a round finds key j for query i."""
        return self.apart(code_i, code_j) <= self.half

    @property
    def half(self) -> float:
        """Half the width of a query's range."""
        return (self.reach - 1) / 2

    @property
    def near(self) -> int:
        """Slots that a block reads: its own and those of earlier blocks."""
        return (self.back + 1) * self.block


def draw_rotations(rounds: int, heads: int, width: int, buckets: int) -> Tensor:
    """Draw R of every round and head, [R, H, K, N/2], from torch's generator.

    Rounded to bfloat16, so that a model in half precision computes the same hashes.
    """
    shape = (rounds, heads, width, buckets // 2)
    return torch.randn(shape, dtype=torch.float32, device="cpu").bfloat16().float()


@torch.no_grad()
def hash_buckets(x_BHTK: Tensor, rotation_RHKN: Tensor) -> Tensor:
    """Return the bucket of every vector in every round, [R, B, H, T]."""
    dtype = torch.promote_types(x_BHTK.dtype, torch.float32)
    rotation_RHKN = rotation_RHKN.to(dtype)
    starts = range(0, x_BHTK.shape[2], TOKENS)
    parts = (x_BHTK[:, :, start : start + TOKENS].to(dtype) for start in starts)
    return torch.cat([_hash(part, rotation_RHKN) for part in parts], dim=-1)


def _hash(x_BHTK: Tensor, rotation_RHKN: Tensor) -> Tensor:
    half = rotation_RHKN.shape[-1]
    buckets = []
    for rotation_HKN in rotation_RHKN:
        rotated_BHTN = x_BHTK @ rotation_HKN
        largest_BHT1 = rotated_BHTN.abs().argmax(-1, keepdim=True)
        negative_BHT1 = rotated_BHTN.gather(-1, largest_BHT1) < 0
        buckets.append((largest_BHT1 + half * negative_BHT1)[..., 0])
    return torch.stack(buckets)


def causal_layout(bucket_RBHT: Tensor, buckets: int, window: int) -> Layout:
    """Start every bucket at the start of a block.

    The index of a token in its block then depends only on earlier tokens of its bucket, and so
    does the order of every sum.
    """
    length = bucket_RBHT.shape[-1]
    # Smaller blocks compute fewer unused pairs, and leave fewer slots empty for small buckets.
    block = max(1, min(-(-window // 2), max(SMALLEST, length // buckets)))
    place_RBHT = _places(bucket_RBHT)
    count_RBHN = bucket_RBHT.new_zeros(*bucket_RBHT.shape[:-1], buckets)
    count_RBHN.scatter_add_(-1, bucket_RBHT, torch.ones_like(bucket_RBHT))
    gap_RBHN = -count_RBHN % block
    shift_RBHN = gap_RBHN.cumsum(-1) - gap_RBHN
    return Layout(
        slot_RBHT=(place_RBHT + shift_RBHN.gather(-1, bucket_RBHT)).int(),
        code_RBHT=_exact(place_RBHT + window * bucket_RBHT, length + window * buckets),
        reach=window,
        slots=(length // block + min(buckets, length)) * block,
        block=block,
        back=-(-(window - 1) // block),
    )


def chunked_layout(bucket_RBHT: Tensor, buckets: int, chunk: int) -> Layout:
    """Cut the sorted tokens into chunks, across bucket boundaries."""
    place_RBHT, chunks = _places(bucket_RBHT), -(-bucket_RBHT.shape[-1] // chunk)
    return Layout(
        slot_RBHT=place_RBHT.int(),
        code_RBHT=_exact(place_RBHT // chunk + 2 * bucket_RBHT, chunks + 2 * buckets),
        reach=2,
        slots=chunks * chunk,
        block=chunk,
        back=1,
    )


def _exact(code_RBHT: Tensor, limit: int) -> Tensor:
    """Convert codes below a limit to floats that represent them and their halves exactly."""
    return code_RBHT.to(torch.float32 if limit < 1 << 22 else torch.float64)


def _places(bucket_RBHT: Tensor) -> Tensor:
    """Return the rank of every token in the order of (bucket, position)."""
    token_RBHT = bucket_RBHT.sort(dim=-1, stable=True).indices
    place_T = torch.arange(bucket_RBHT.shape[-1], device=bucket_RBHT.device)
    return torch.empty_like(token_RBHT).scatter_(-1, token_RBHT, place_T.expand_as(token_RBHT))
