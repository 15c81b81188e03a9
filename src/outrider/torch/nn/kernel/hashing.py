"""Hashing by random rotations, and the order it gives (Andoni et al., 2015, arXiv:1509.02897).

    h(x) = argmax [x R ; -x R]        R drawn once: [K, N/2] for N buckets

Near directions fall into one bucket, likely. A round is one R; all tensors here carry R rounds.
Tokens are put in order of (bucket, position). In that order a `code` is chosen so that one
subtraction tells whether query i finds key j in a round: 0 <= code_i - code_j < reach.

    causal    code = place + m bucket          reach m    the last m tokens of one's own bucket
    chunked   code = place div m + 2 bucket    reach 2    one's bucket in one's own chunk of m and
                                                          the one before
"""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Layout", "causal_layout", "chunked_layout", "draw_rotations", "hash_buckets"]

TOKENS = 1 << 10
"""Tokens of a row that are hashed at once."""

SMALLEST = 8
"""Slots of a block that are still worth a matrix product."""


class Layout(NamedTuple):
    """Where tokens stand after sorting: in blocks, so that a query's keys are in few of them."""

    slot_RBHT: Tensor
    """Slot of every token; slots that no token takes stay empty."""
    code_RBHT: Tensor
    """Whole numbers from 0 on, as floats."""
    reach: int
    slots: int
    block: int
    """Slots of a block."""
    back: int
    """Blocks before its own that a query must look into."""

    def apart(self, code_i: Tensor, code_j: Tensor) -> Tensor:
        """How far key j is from the middle of what query i finds; codes broadcast together."""
        return (code_i - (code_j + self.half)).abs_()

    def found(self, code_i: Tensor, code_j: Tensor) -> Tensor:
        """Whether a round finds key j for query i."""
        return self.apart(code_i, code_j) <= self.half

    @property
    def half(self) -> float:
        """How far from its middle a query finds keys."""
        return (self.reach - 1) / 2

    @property
    def near(self) -> int:
        """Slots that a block meets: its own and those it looks back to."""
        return (self.back + 1) * self.block


def draw_rotations(rounds: int, heads: int, width: int, buckets: int) -> Tensor:
    """Draw R of every round and head, [R, H, K, N/2], from torch's generator like a weight.

    Rounded to bfloat16, so that a model in half precision hashes with the same numbers.
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
        turned_BHTN = x_BHTK @ rotation_HKN
        largest_BHT1 = turned_BHTN.abs().argmax(-1, keepdim=True)
        negative_BHT1 = turned_BHTN.gather(-1, largest_BHT1) < 0
        buckets.append((largest_BHT1 + half * negative_BHT1)[..., 0])
    return torch.stack(buckets)


def causal_layout(bucket_RBHT: Tensor, buckets: int, window: int) -> Layout:
    """Lay every bucket out from the start of a block.

    A token's place in its block then depends on the past of its bucket alone, and so do the
    order of every sum and its last bit.
    """
    length = bucket_RBHT.shape[-1]
    # Smaller blocks score fewer pairs in vain, and leave fewer slots empty where buckets are small.
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
    """Cut the sorted tokens into chunks, wherever buckets end."""
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
    """Make codes below a limit floats, wide enough for them and for halves between them."""
    return code_RBHT.to(torch.float32 if limit < 1 << 22 else torch.float64)


def _places(bucket_RBHT: Tensor) -> Tensor:
    """Place of every token in order of (bucket, position)."""
    token_RBHT = bucket_RBHT.sort(dim=-1, stable=True).indices
    place_T = torch.arange(bucket_RBHT.shape[-1], device=bucket_RBHT.device)
    return torch.empty_like(token_RBHT).scatter_(-1, token_RBHT, place_T.expand_as(token_RBHT))
