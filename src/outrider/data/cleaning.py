"""Cleaning: normalises texts and drops unsuitable pairs, with counts and examples.

Duplicates are found in a table of fixed size with 64-bit hashes in buckets of eight; a full bucket
drops its oldest hash. A false positive has a probability of about 1e-19 per stored pair. A
duplicate is missed only if the distance to the first pair exceeds the size of the table.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from outrider.data.config import CleanConfig
from outrider.data.corpus import Passage, Row
from outrider.data.manifest import Dropped
from outrider.errors import DataError
from outrider.text.language import LanguageGuess
from outrider.text.normalise import normalise

WAYS = 8


class SeenBefore:
    """Finds texts that occurred before, by batches."""

    def __init__(self, megabytes: int) -> None:
        self._buckets = (megabytes << 20) // (8 * WAYS)
        self._table = np.zeros((self._buckets, WAYS), np.uint64)
        self._next = np.zeros(self._buckets, np.uint8)

    def __call__(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Mark the texts that occurred before, here or in an earlier call, and store the others."""
        digests = b"".join(blake2b(text.encode(), digest_size=8).digest() for text in texts)
        hashes = np.frombuffer(digests, np.uint64)
        unique, first = np.unique(hashes, return_index=True)
        known = (self._table[self._bucket(unique)] == unique[:, None]).any(axis=1)
        self._store(unique[~known])
        seen = np.ones(len(texts), np.bool_)
        seen[first[~known]] = False
        return seen

    def _bucket(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return hashes % np.uint64(self._buckets)

    def _store(self, hashes: NDArray[np.uint64]) -> None:
        while len(hashes):
            # One new hash per bucket and round, so that none overwrites another.
            buckets, first = np.unique(self._bucket(hashes), return_index=True)
            self._table[buckets, self._next[buckets]] = hashes[first]
            self._next[buckets] = (self._next[buckets] + 1) % WAYS
            hashes = np.delete(hashes, first)


PHRASE = 8
"""Longest group of words whose repetitions are counted."""
EAST_ASIAN = 0x2E80
"""First code point of East Asian scripts, which have no spaces between words and sentences."""


class Drops:
    """Counts of dropped rows by reason, with the first example of each."""

    def __init__(self) -> None:
        self.reasons: dict[str, Dropped] = {}

    def add(self, reason: str, row: Row | Passage) -> None:
        """Count a dropped row."""
        before = self.reasons.get(reason)
        if before is not None:
            self.reasons[reason] = Dropped(count=before.count + 1, example=before.example)
            return
        text = row.text if isinstance(row, Passage) else f"{row.source} | {row.target}"
        shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:80])
        self.reasons[reason] = Dropped(count=1, example=f"{row.place}, line {row.line}: {shown}")

    def total(self) -> int:
        """Return the number of dropped rows."""
        return sum(dropped.count for dropped in self.reasons.values())

    def fault(self, row: Row | Passage, config: CleanConfig) -> None:
        """Drop an unreadable row, or raise an error with `on_bad_text: error`."""
        if config.on_bad_text == "error" and row.fault != "too long":
            raise DataError(
                f"{row.place}, line {row.line}: {row.fault}; fix the line, or set "
                "data.clean.on_bad_text: drop to leave such lines out"
            )
        self.add(row.fault, row)


class PairCleaner:
    """Normalises and filters the pairs of one corpus."""

    def __init__(self, config: CleanConfig, *, sources_alone: bool = False) -> None:
        self.config, self.sources_alone = config, sources_alone
        self.drops = Drops()
        self._seen = SeenBefore(config.duplicate_megabytes) if config.drop_duplicates else None
        wanted = {"source": config.source_language, "target": config.target_language}
        if sources_alone:
            del wanted["target"]
        self._languages = {side: code for side, code in wanted.items() if code is not None}
        self._guess = LanguageGuess() if self._languages else None
        for side, code in self._languages.items():
            assert self._guess is not None
            self._guess.check(f"data.clean.{side}_language", code)

    def keep(self, rows: Sequence[Row]) -> list[tuple[str, str]]:
        """Return the pairs that pass the filters, normalised."""
        kept_rows, pairs = [], []
        for row in rows:
            if row.fault:
                self.drops.fault(row, self.config)
                continue
            source, target = normalise(row.source), normalise(row.target)
            reason = self._reason(source, target)
            if reason:
                self.drops.add(reason, row)
            else:
                kept_rows.append(row)
                pairs.append((source, target))
        return self._without_duplicates(kept_rows, pairs)

    def _reason(self, source: str, target: str) -> str:
        if self.sources_alone:
            target = source
        shorter, longer = sorted((len(source), len(target)))
        if not shorter:
            return "empty"
        if shorter < self.config.min_characters:
            return "too short"
        if longer > self.config.max_characters:
            return "too long"
        if self.config.max_ratio is not None and longer > shorter * self.config.max_ratio:
            return "length ratio"
        if self.config.drop_equal and source == target and not self.sources_alone:
            return "source equals target"
        if self.config.max_repeats is not None and not self.sources_alone:
            fewer, more = sorted((count_repeats(source), count_repeats(target)))
            if more > max(fewer, self.config.max_repeats):
                return "repeats itself"
        return self._wrong_language(source=source, target=target)

    def _wrong_language(self, **text: str) -> str:
        for side, wanted in self._languages.items():
            language = self._guess(text[side]) if self._guess is not None else None
            if language not in (None, wanted):
                return f"{side} in another language"
        return ""

    def _without_duplicates(
        self, rows: Sequence[Row], pairs: list[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        if self._seen is None or not pairs:
            return pairs
        seen = self._seen([f"{source}\n{target}" for source, target in pairs])
        for i in seen.nonzero()[0].tolist():
            self.drops.add("duplicate", rows[i])
        return [pair for pair, again in zip(pairs, seen, strict=True) if not again]


def count_repeats(text: str) -> int:
    """Return the most consecutive repetitions of a group of up to eight words.

    In scripts without spaces, letters are counted instead of words.
    """
    unspaced = sum(ord(letter) >= EAST_ASIAN for letter in text)
    parts: Sequence[str] = text if 2 * unspaced > len(text) else text.split()
    most = 1
    for size in range(1, min(PHRASE, len(parts) // 2) + 1):
        run = 0
        for before, after in zip(parts, parts[size:], strict=False):
            run = run + 1 if before == after else 0
            most = max(most, run // size + 1)
    return most
