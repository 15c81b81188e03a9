"""Parallel continuation: a language model's drafter writes block after block, and nobody checks.

A round fills one block at once, asks its less certain places again if that is wanted (`writer.py`),
and lets the model take the block in, which says nothing to it: it only reads, so that the next
block goes on from there. At gamma 0 tandem decoding keeps of such a block what the model would have
said; here all of it stands.
"""

from collections.abc import Sequence
from time import perf_counter

from outrider.decoding.batch import Batch
from outrider.decoding.protocol import Backend
from outrider.decoding.questions import LogProbs, Nothing
from outrider.decoding.settings import DecodeSettings
from outrider.decoding.statistics import Statistics
from outrider.decoding.writer import BlockWriter

__all__ = ["ContinuationBatch"]


class ContinuationBatch(Batch):
    """Rows of one config whose texts grow by whole blocks."""

    drafting = True

    def __init__(self, backend: Backend, stats: Statistics, config: DecodeSettings) -> None:
        assert backend.drafts is not None
        super().__init__(backend, stats, block=backend.drafts.longest)
        self.config, self.drafts = config, backend.drafts

    def _round(self) -> None:
        started, seconds = perf_counter(), self.stats.seconds
        rows = self.rows
        self._forget()
        newest = [row.newest for row in rows]
        blocks = self._write(newest)
        drafted = perf_counter()
        said = []
        for row, block in zip(rows, blocks, strict=True):
            before = len(row.tokens)
            if not row.done:
                count = row.take(block, len(block), None)
                self.stats.count(row.rounds[-1], count)
            said.append(row.tokens[before:])
        self._read(newest, said)
        seconds["draft"] += drafted - started
        seconds["verify"] += perf_counter() - drafted

    def _write(self, newest: list[int]) -> list[list[int]]:
        """Fill a block for every row that is not done: as much of it as may be said."""
        slots = [0 if row.done else min(self.block, row.room) for row in self.rows]
        if self.backend.max_length is not None:  # the longest row must be able to count them
            most = self.backend.max_length - max(row.held for row in self.rows) - 1
            slots = [min(count, max(most, 1)) for count in slots]
        writer = BlockWriter.beyond(self.backend, self.config, self.state, newest, slots)
        writer.refine()
        forbidden = {*self.config.suppress, self.backend.pad}
        blocks = []
        for tokens, count in zip(writer.tokens_BU.tolist(), slots, strict=True):
            allowed = [token for token in tokens[:count] if token not in forbidden]
            # A block of nothing that may be said ends a text: there is nothing to go on from.
            blocks.append(allowed or [self.backend.eos])
        return blocks

    def _read(self, newest: Sequence[int], said: list[list[int]]) -> None:
        """Let the model take in what was said, all but the newest token of each row."""
        fed = [[last, *tokens][: len(tokens)] for last, tokens in zip(newest, said, strict=True)]
        if not self.config.scores:
            if not all(row.done for row in self.rows):
                self.backend.extend(fed, self.state, Nothing(), last=True)
            return
        longest = max(map(len, said))
        padded = [[*tokens, *[self.backend.pad] * (longest - len(tokens))] for tokens in said]
        found = self.backend.extend(fed, self.state, LogProbs(padded, self.backend.ends))
        for row, scores, tokens in zip(self.rows, found, said, strict=True):
            row.log_probs += scores[: len(tokens)]
