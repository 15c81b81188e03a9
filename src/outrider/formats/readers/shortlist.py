"""Lexical shortlists of Bergamot (`lex.*.bin`): target tokens to score for a source.

    u64 x 6    magic number, checksum, number of frequent tokens, most tokens of a source token,
               count of offsets, count of tokens
    offsets    u64: the target tokens of source token w are those from offset w to offset w + 1
    tokens     u32

A source's shortlist is the frequent tokens, those of its tokens and, with a shared vocabulary, its
own tokens. A head that scores only these is many times smaller.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelError
from outrider.files import open_regular

MAGIC = 0xF11A48D5013417F5
HEADER = struct.Struct("<6Q")


@dataclass(frozen=True)
class Shortlist:
    """Target tokens by source token."""

    frequent: int
    """Number of first tokens that are always listed."""
    offsets: NDArray[np.uint64]
    tokens: NDArray[np.uint32]
    shared: bool
    """List the tokens of the source too: both sides share a vocabulary."""

    def listed(self, source: Sequence[int]) -> list[int]:
        """Return the shortlist of a source, in ascending order."""
        own = sorted({token for token in source if 0 <= token < len(self.offsets) - 1})
        parts = [self.tokens[self.offsets[token] : self.offsets[token + 1]] for token in own]
        parts.append(np.arange(self.frequent, dtype=np.uint32))
        if self.shared:
            parts.append(np.array(own, np.uint32))
        return np.unique(np.concatenate(parts)).tolist()


def read_shortlist(path: Path, *, vocab_size: int, shared: bool) -> Shortlist:
    """Read a shortlist; every count and token is checked."""
    with open_regular(path) as file:
        size = path.stat().st_size
        head = file.read(HEADER.size)
        if len(head) < HEADER.size:
            raise _damaged(path, "it ends too soon")
        magic, _, frequent, _, count, total = HEADER.unpack(head)
        if magic != MAGIC:
            raise _damaged(path, "its magic number is wrong")
        if size != HEADER.size + 8 * count + 4 * total:
            raise _damaged(path, f"its length differs from {count} offsets and {total} tokens")
        offsets = np.fromfile(file, "<u8", count)
        tokens = np.fromfile(file, "<u4", total)
    if len(offsets) != count or len(tokens) != total:
        raise _damaged(path, "it ends too soon")
    if count < 2 or offsets[-1] > total or (offsets[1:] < offsets[:-1]).any():
        raise _damaged(path, "its offsets are not in order")
    if frequent > vocab_size or (total and tokens.max() >= vocab_size):
        raise _damaged(path, f"it lists tokens beyond the model's {vocab_size}")
    if not frequent:
        raise _damaged(path, "it lists no frequent tokens, which include the end token")
    return Shortlist(frequent, offsets, tokens, shared)


def _damaged(path: Path, reason: str) -> ModelError:
    return ModelError(f"{path}: damaged or not a lexical shortlist ({reason})")
