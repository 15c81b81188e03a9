"""Tandem decoding: a draft source proposes a block of tokens, the model verifies it in one pass.

    draft     d_1 .. d_k after the newest token, all at once (`drafts/`)
    verify    one pass of the model over [newest, d_1 .. d_k]
    accept    the drafts that the model confirms, and one token of its own after them
    rollback  the rejected drafts

Each row advances by what it accepted. With gamma = 0 the text is that of the model alone, token for
token (greedy) or in distribution (sampling), in fewer passes. See `accept.py` for the rule and
`controller.py` for the choice of k.

The text never depends on timing. Block sizes, and whether to draft at all, are chosen by measured
time only where every choice gives the same text: greedy with gamma 0, if blocks and single steps
round alike (`epsilon` 0) or near-ties are replayed (`replay.py`). In float32 they always are, in
lower precision with `strict`; without `strict` they would be too many there, so the block size is
fixed.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from outrider.decoding.accept import Accept
from outrider.decoding.batch import Batch
from outrider.decoding.controller import Controller, Plan
from outrider.decoding.drafts import load_source
from outrider.decoding.protocol import Backend, Proposal
from outrider.decoding.queries import Argmax, Grouped, Part
from outrider.decoding.request import Masked, Row, TokenMask, compare
from outrider.decoding.statistics import Statistics

if TYPE_CHECKING:
    from outrider.decoding.replay import Replay


class TandemBatch(Batch):
    """Base of tandem batches."""

    def __init__(
        self, backend: Backend, stats: Statistics, masked: Masked, *, block: int, draft: str
    ) -> None:
        """Draft up to `block` tokens at once for rows with the same forbidden tokens."""
        super().__init__(backend, stats, block=block)
        self.source = load_source(draft, backend)
        self.drafting = self.source.drafting
        self._mask = TokenMask(*masked)
        self._scores = False

    def changed(self) -> None:
        """Check whether any row needs log-probabilities."""
        self.source.state = self.state
        self._scores = any(row.config.scores for row in self.rows)


class ExactBatch(TandemBatch):
    """Greedy rows with gamma 0: a draft is accepted while it equals the model's argmax."""

    def __init__(
        self,
        backend: Backend,
        stats: Statistics,
        masked: Masked,
        *,
        block: int,
        draft: str,
        controller: Controller | None = None,
        replayed: bool = False,
    ) -> None:
        """A controller chooses the block size; with `replayed` near-ties are computed again."""
        super().__init__(backend, stats, masked, block=block, draft=draft)
        self.controller = controller
        self._clock = perf_counter if controller is None else controller.clock
        self._plan = Plan(block, 0.0)
        self._replay: Replay | None = None
        self._tie_margin = 0.0
        if replayed:
            from outrider.decoding import replay

            self._replay = replay.Replay(backend, self._mask, stats)
            self._tie_margin = replay.tie_margin(backend)
        self._fixed_query: Argmax | None = None

    def changed(self) -> None:
        """Build the query of every round, if it is constant."""
        super().changed()
        self._fixed_query = None
        if not self._mask.waits:
            self._fixed_query = Argmax(self._mask.always, self._scores, self._tie_margin)

    def _round(self) -> None:
        """Draft and verify in one call, and accept the drafts that equal the argmax."""
        clock, controller = self._clock, self.controller
        started = clock()
        rows, seconds = self.rows, self.stats.seconds
        query = self._fixed_query or Argmax(
            self._mask.after([len(row.tokens) for row in rows]), self._scores, self._tie_margin
        )
        if controller is not None:
            self._plan = controller.plan(len(rows))
        counts = self._counts()
        longest = max(counts)
        called = clock()
        if longest:
            drafted, best, confidence, drafting = self.source.draft_and_verify(
                rows, counts, query, self._plan.min_survival
            )
        else:
            drafted, confidence, drafting = [[] for _ in rows], None, 0.0
            self._rollback()
            best = self.backend.extend([[row.last] for row in rows], self.state, query)
        if self._replay is not None:
            self._replay.resolve(rows, drafted, best)
        answered = clock()
        for n, row in enumerate(rows):
            if row.done:
                continue
            accepted, token = compare(drafted[n], best.tokens[n])
            row_confidence = () if confidence is None else confidence[n]
            count = row.accept(drafted[n], accepted, token, row_confidence)
            if best.log_probs is not None:
                row.log_probs += best.log_probs[n][:count]
            round_ = row.rounds[-1]
            self.stats.count(round_, count)
            if controller is not None:
                controller.observe_draft(counts[n], round_.accepted)
        ended = clock()
        if controller is not None:
            checked = sum(map(len, drafted)) / len(rows)
            controller.observe(
                len(rows), longest, ended - started, drafting=drafting, checked=checked
            )
        seconds["draft"] += drafting
        seconds["verify"] += answered - called - drafting
        seconds["loop"] += called - started + ended - answered

    def _counts(self) -> list[int]:
        """Return the number of drafts for each row, within its limit."""
        count = self._plan.tokens
        if self.backend.max_length is not None:  # the longest row needs positions for them
            longest = max(row.cached for row in self.rows)
            count = min(count, self.backend.max_length - longest - 1)
        return [0 if row.done else min(count, row.remaining) for row in self.rows]


class MixtureBatch(TandemBatch):
    """Rows that sample or have gamma above 0, accepted by the rules of `accept.py`.

    The text depends on where blocks begin, so blocks and random numbers depend on the row alone:
    sampling always takes 2 * block + 1 numbers a round.
    """

    def _round(self) -> None:
        started = perf_counter()
        rows, config, seconds = self.rows, self.rows[0].config, self.stats.seconds
        self._rollback()
        numbers = [row.stream.draw(2 * self.block + 1) for row in rows if row.stream is not None]
        counts = [0 if row.done else min(self.block, self._remaining(row)) for row in rows]
        draft = Proposal([[] for _ in rows])
        if any(counts):
            uniform = [row[: max(counts)] for row in numbers]
            draft = self.source.draft(rows, counts, config.temperature, uniform)
        drafted = draft.tokens
        # With gamma no token follows a whole draft, so the last draft need not be fed.
        fed = [[row.last, *guesses] for row, guesses in zip(rows, drafted, strict=True)]
        if config.gamma:
            fed = [tokens[: len(tokens) - 1] if tokens[1:] else tokens for tokens in fed]
        parts = self._parts(draft, fed, numbers)
        called = perf_counter()
        verdicts: list[Any] = [None] * len(rows)
        log_probs: list[Any] = [[]] * len(rows)
        answers = self._query(fed, parts)
        for part, judged in zip(parts, answers, strict=True):
            for place, n in enumerate(part.rows):
                verdicts[n] = judged.verdicts[place]
                if judged.log_probs is not None:
                    log_probs[n] = judged.log_probs[place]
        answered = perf_counter()
        confidence = draft.confidence or [[] for _ in rows]
        for n, row in enumerate(rows):
            if not row.done:
                accepted, token = verdicts[n]
                count = row.accept(drafted[n], accepted, token, confidence[n])
                row.log_probs += log_probs[n][:count]
                self.stats.count(row.rounds[-1], count)
        seconds["draft"] += called - started
        seconds["verify"] += answered - called
        seconds["loop"] += perf_counter() - answered

    def _remaining(self, row: Row) -> int:
        """Return the tokens until the row's limit or the model's last position."""
        longest = self.backend.max_length
        if longest is None:
            return row.remaining
        return min(row.remaining, longest - row.cached - (row.config.gamma == 0))

    def _parts(
        self,
        draft: Proposal,
        fed: Sequence[Sequence[int]],
        numbers: Sequence[Sequence[float]],
    ) -> list[Part]:
        """Group rows by the lengths of their drafts, each group with one query."""
        rows, block = self.rows, self.block
        config = rows[0].config
        groups: dict[int, list[int]] = {}
        for n, drafted in enumerate(draft.tokens):
            groups.setdefault(len(drafted), []).append(n)
        parts = []
        for count, places in groups.items():
            query = Accept(
                draft.part(places, count) if count else None,
                config.gamma,
                config.sampling if config.strategy == "sample" else None,
                [[*row[block : block + count], row[-1]] for row in (numbers[n] for n in places)]
                if numbers
                else (),
                self._mask.after([len(rows[n].tokens) for n in places]),
                self._scores,
            )
            parts.append(Part(places, len(fed[places[0]]), query))
        return parts

    def _query(self, fed: Sequence[Sequence[int]], parts: Sequence[Part]) -> list[Any]:
        if len(parts) == 1:
            return [self.backend.extend(fed, self.state, parts[0].query)]
        return self.backend.extend(fed, self.state, Grouped(tuple(parts)))
