"""Augmentation: variations of real text that clean corpora lack, different in every epoch.

These are sentences without a final mark, in upper or lower case, with typos, several on a line, and
with tags and placeholders. A share of the rows is changed when batches are planned. The changes
depend on seed, epoch and row only, so a resumed run makes the same changes.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.data.cleaning import EAST_ASIAN
from outrider.data.config import AugmentConfig
from outrider.data.plan import random_below, random_uniform
from outrider.data.prepared import Prepared
from outrider.data.shards import BlockReader, Ragged

IntArray = NDArray[np.int64]
Pair = tuple[str, str]

FINAL_MARKS = ".!?\u2026\u3002\uff01\uff1f\uff0e\u0964"
PLACEHOLDERS = ("{0}", "{name}", "%s", "%d", "$1", "[1]", "@user", "https://example.com/a?b=1")
TAGS = ("b", "i", "p", "a", "span", "1")
SHORTEST_WITH_TYPO = 4
"""Fewest letters of a source with a typo."""
KINDS, PLACES = 4, 5
"""Keys of the random numbers, distinct from those of the batch plan."""


class AugmentedRows:
    """The rows of a corpus in one epoch. Caches the blocks of the last call of `lengths`."""

    def __init__(
        self, prepared: Prepared, config: AugmentConfig, *, seed: int, longest: int
    ) -> None:
        """Augment a corpus of pairs; a pair over `longest` tokens is not changed."""
        self._tokenizer, self._seed, self._longest = prepared.tokenizer, seed, longest
        self._reader: BlockReader = prepared.reader("train")
        self._edges = np.cumsum(config.kinds())
        self._cache: dict[tuple[int, int], tuple[Ragged, Ragged]] = {}

    def lengths(self, blocks: IntArray, epoch: int) -> tuple[IntArray, IntArray]:
        """Return the source and target lengths of the rows of several blocks."""
        wanted = [(epoch, int(block)) for block in blocks]
        self._cache = {key: self._cache.get(key) or self._change(key[1], epoch) for key in wanted}
        sources, targets = zip(*(self._cache[key] for key in wanted), strict=True)
        return _lengths(sources), _lengths(targets)

    def ids(self, block: int, epoch: int) -> tuple[Ragged, Ragged]:
        """Return the token ids of a block, sources and targets."""
        return self._cache.get((epoch, block)) or self._change(block, epoch)

    def _change(self, block: int, epoch: int) -> tuple[Ragged, Ragged]:
        table = self._reader.table(block, ["source", "target"], "source")
        pairs: list[Pair] = list(
            zip(table["source"].to_pylist(), table["target"].to_pylist(), strict=True)
        )
        number_R = random_uniform(len(pairs), self._seed, epoch, KINDS, block)
        kind_R = np.searchsorted(self._edges, number_R, side="right")
        changed: dict[int, Pair] = {}
        for row in np.flatnonzero(kind_R < len(self._edges)).tolist():
            random = _Random(self._seed, epoch, PLACES, block, row)
            pair = CHANGES[kind_R[row]](pairs[row], random, pairs)
            if pair != pairs[row]:
                changed[row] = pair
        sources = self._tokenizer.encode_batch([source for source, _ in changed.values()])
        targets = self._tokenizer.encode_target_batch([target for _, target in changed.values()])
        new_sources, new_targets = {}, {}
        for row, source, target in zip(changed, sources, targets, strict=True):
            if 0 < min(len(source), len(target)) <= max(len(source), len(target)) <= self._longest:
                new_sources[row], new_targets[row] = source, target
        return (
            _replace(self._reader.ids(block, "source_ids"), new_sources),
            _replace(self._reader.ids(block, "target_ids"), new_targets),
        )


class _Random:
    """Random integers that depend on a key only."""

    def __init__(self, *key: int) -> None:
        self._key, self._count = key, 0

    def below(self, count: int) -> int:
        self._count += 1
        return random_below(count, *self._key, self._count)


def _without_final_mark(pair: Pair, random: _Random, pairs: Sequence[Pair]) -> Pair:
    source, target = (side.rstrip(FINAL_MARKS).rstrip() for side in pair)
    return (source, target) if source and target and source != pair[0] else pair


def _with_other_casing(pair: Pair, random: _Random, pairs: Sequence[Pair]) -> Pair:
    source, target = pair
    if source.upper() == source.lower():
        return pair
    return (source.upper(), target.upper()) if random.below(2) else (source.lower(), target)


def _with_typo(pair: Pair, random: _Random, pairs: Sequence[Pair]) -> Pair:
    source, target = pair
    places = [n for n in range(1, len(source) - 1) if source[n].isalpha()]
    if len(places) < SHORTEST_WITH_TYPO:
        return pair
    place, kind = places[random.below(len(places))], random.below(3)
    before, letter, after = source[:place], source[place], source[place + 1 :]
    typos = (after[:1] + letter + after[1:], after, letter + letter + after)
    return before + typos[kind], target


def _joined(pair: Pair, random: _Random, pairs: Sequence[Pair]) -> Pair:
    other = pairs[random.below(len(pairs))]
    source, target = (_join(*sides) for sides in zip(pair, other, strict=True))
    return source, target


def _join(left: str, right: str) -> str:
    spaced = not left or not right or min(ord(left[-1]), ord(right[0])) < EAST_ASIAN
    return f"{left} {right}" if spaced else left + right


def _with_placeholder(pair: Pair, random: _Random, pairs: Sequence[Pair]) -> Pair:
    source, target = pair
    kind = random.below(3)
    if kind == 2:
        tag = TAGS[random.below(len(TAGS))]
        return f"<{tag}>{source}</{tag}>", f"<{tag}>{target}</{tag}>"
    word = PLACEHOLDERS[random.below(len(PLACEHOLDERS))]
    if kind == 1:
        return f"{word} {source}", f"{word} {target}"
    return f"{source} {word}", f"{target} {word}"


CHANGES: tuple[Callable[[Pair, _Random, Sequence[Pair]], Pair], ...] = (
    _without_final_mark,
    _with_other_casing,
    _with_typo,
    _joined,
    _with_placeholder,
)
"""Changes in the order of the keys of `AugmentConfig`."""


def change_all(pairs: Sequence[Pair], kind: str, *, seed: int = 0) -> list[Pair]:
    """Change every pair in one way, a key of `AugmentConfig`, for tests of robustness."""
    change = CHANGES[[*AugmentConfig.model_fields].index(kind)]
    return [change(pair, _Random(seed, PLACES, row), pairs) for row, pair in enumerate(pairs)]


def _lengths(parts: Sequence[Ragged]) -> IntArray:
    return np.concatenate([part.lengths for part in parts])


def _replace(rows: Ragged, new: Mapping[int, Sequence[int]]) -> Ragged:
    """Return the rows with some of them replaced."""
    if not new:
        return rows
    parts = np.split(rows.flat, rows.offsets[1:-1])
    for row, ids in new.items():
        parts[row] = np.asarray(ids, rows.flat.dtype)
    lengths = [len(part) for part in parts]
    return Ragged(np.concatenate(parts), np.cumsum([0, *lengths]))
