"""Lexical shortlists of Bergamot (`lex.*.bin`): which words a source may be translated with.

    u64 x 6    a magic number, a checksum, how many frequent words count always, how many words a
               source word has at most, count of offsets, count of words
    offsets    u64: the words of source word w begin at offset w and end at offset w + 1
    words      u32 of the target

What may follow a source is the frequent words, those of each of its words and, where both sides
share a vocabulary, its own. A head that scores only these is many times smaller.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelError
from outrider.files import open_regular

__all__ = ["Shortlist", "read_shortlist"]

MAGIC = 0xF11A48D5013417F5
HEADER = struct.Struct("<6Q")


@dataclass(frozen=True)
class Shortlist:
    """Words of the target by words of the source."""

    frequent: int
    """So many of the first words are always listed."""
    offsets: NDArray[np.uint64]
    words: NDArray[np.uint32]
    shared: bool
    """Whether the words of a source may be written as they are."""

    def listed(self, source: Sequence[int]) -> list[int]:
        """Return what may follow a source, in order."""
        own = sorted({word for word in source if 0 <= word < len(self.offsets) - 1})
        parts = [self.words[self.offsets[word] : self.offsets[word + 1]] for word in own]
        parts.append(np.arange(self.frequent, dtype=np.uint32))
        if self.shared:
            parts.append(np.array(own, np.uint32))
        return np.unique(np.concatenate(parts)).tolist()


def read_shortlist(path: Path, *, words: int, shared: bool) -> Shortlist:
    """Read a shortlist into a vocabulary of so many words; every count and word is checked."""
    with open_regular(path) as file:
        size = path.stat().st_size
        head = file.read(HEADER.size)
        if len(head) < HEADER.size:
            raise _damaged(path, "it ends too soon")
        magic, _, frequent, _, count, total = HEADER.unpack(head)
        if magic != MAGIC:
            raise _damaged(path, "it begins otherwise")
        if size != HEADER.size + 8 * count + 4 * total:
            raise _damaged(path, f"it is not as long as {count} offsets and {total} words")
        offsets = np.fromfile(file, "<u8", count)
        listed = np.fromfile(file, "<u4", total)
    if len(offsets) != count or len(listed) != total:
        raise _damaged(path, "it ends too soon")
    if count < 2 or offsets[-1] > total or (offsets[1:] < offsets[:-1]).any():
        raise _damaged(path, "its offsets are not in order")
    if frequent > words or (total and listed.max() >= words):
        raise _damaged(path, f"it lists words that are not among the {words} of the model")
    if not frequent:
        raise _damaged(path, "it lists no frequent words, the end of a text among them")
    return Shortlist(frequent, offsets, listed, shared)


def _damaged(path: Path, reason: str) -> ModelError:
    return ModelError(f"{path}: damaged or not a lexical shortlist ({reason})")
