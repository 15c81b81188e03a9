"""Tandem decoding: a drafter guesses a block of tokens, the model checks it in one pass.

    draft     d_1 .. d_k after the newest token, all at once
    verify    one pass of the model over [newest, d_1 .. d_k]
    accept    the drafts that the model confirms, and one token of its own after them
    forget    what the model took in beyond that

Each row advances by what it accepted; nobody waits. With gamma = 0 the text is that of the model
alone, token for token (greedy) or in distribution (sampling): only the number of passes drops. See
`accept.py` for the rule, `controller.py` for the choice of k.

The text never depends on how fast something was. Block sizes, and whether to draft at all, are
chosen by measured time only where every choice writes the same: greedy with gamma 0, where nothing
is rounded differently (`epsilon` 0) or near-ties are settled, in blocks and in plain steps alike
(`replay.py`): in float32 always, in lower precision with `strict`. There, without `strict`, near-
ties are too many to settle unasked, so every batch is drafted in blocks of one size.

One round of tandem decoding in two calls, for backends that do not do it in one.
"""

from collections.abc import Collection, Sequence
from itertools import accumulate, zip_longest
from operator import mul
from time import perf_counter
from typing import Any

from outrider.decoding.accept import Accept, Verdict
from outrider.decoding.batch import Batch
from outrider.decoding.controller import Controller, Plan
from outrider.decoding.protocol import Backend, Draft, Drafts, RoundOutput, State
from outrider.decoding.queries import Argmax, Grouped, Part
from outrider.decoding.replay import FINE, Replay, closeness
from outrider.decoding.request import Masked, Row, TokenMask, up_to_end
from outrider.decoding.settings import DecodeSettings
from outrider.decoding.statistics import Statistics
from outrider.errors import ConfigError, ModelError

__all__ = [
    "ExactBatch",
    "JudgedBatch",
    "block_size",
    "draft_and_verify",
    "is_exact",
    "may_choose",
    "settles",
    "worth_checking",
]

BLOCK = 8
"""Tokens drafted at once where neither the user nor a controller says."""


def is_exact(config: DecodeSettings) -> bool:
    """Whether the text is that of greedy decoding; then only tokens are compared."""
    return config.strategy == "greedy" and config.gamma == 0


def may_choose(backend: Backend, config: DecodeSettings) -> bool:
    """Whether blocks of any size, and plain steps too, write the same text.

    Then a controller may choose between them, unless the user has.
    """
    return is_exact(config) and config.draft_tokens is None and settles(backend, config)


def settles(backend: Backend, config: DecodeSettings) -> bool:
    """Whether near-ties are computed again; where nothing is rounded there are none."""
    return config.strict or backend.epsilon <= FINE


def block_size(backend: Backend, config: DecodeSettings) -> int:
    """Return how many tokens are drafted at once where no controller chooses."""
    longest, wanted = 0 if backend.drafts is None else backend.drafts.longest, config.draft_tokens
    if not longest:
        raise ModelError(
            "mode tandem: this model has no drafter; train one with `outrider train` "
            "(model.type: drafter) or decode with mode ar"
        )
    if wanted is not None and wanted > longest:
        raise ConfigError(
            "draft_tokens", f"got {wanted}, but this drafter guesses at most {longest} at once"
        )
    return wanted or min(BLOCK, longest)


class TandemBatch(Batch):
    """Rows for which the same drafter drafts."""

    drafting = True

    def __init__(self, backend: Backend, stats: Statistics, masked: Masked, *, block: int) -> None:
        """Draft up to `block` tokens at once for rows that may not say the same tokens."""
        super().__init__(backend, stats, block=block)
        assert backend.drafts is not None
        self.drafts: Drafts = backend.drafts
        self._mask = TokenMask(*masked)
        self._scores = False

    def changed(self) -> None:
        """See who wants to know how likely its text is."""
        self._scores = any(row.config.scores for row in self.rows)


class ExactBatch(TandemBatch):
    """Greedy rows with gamma 0: what stands is what the model would have said itself."""

    def __init__(
        self,
        backend: Backend,
        stats: Statistics,
        masked: Masked,
        *,
        block: int,
        controller: Controller | None = None,
        settled: bool = False,
    ) -> None:
        """A controller chooses the size of blocks; near-ties may be `settled` by a replay."""
        super().__init__(backend, stats, masked, block=block)
        self.controller = controller
        self._clock = perf_counter if controller is None else controller.clock
        self._plan = Plan(block, 0.0)
        self._replay = Replay(backend, self._mask, stats) if settled else None
        self._near = closeness(backend) if settled else 0.0
        self._steady: Argmax | None = None

    def changed(self) -> None:
        """See what is asked in every round."""
        super().changed()
        self._steady = None
        if not self._mask.waits:
            self._steady = Argmax(self._mask.always, self._scores, self._near)

    def _round(self) -> None:
        """Draft and verify in one call, and accept what the model would have said itself."""
        clock, controller = self._clock, self.controller
        started = clock()
        rows, seconds = self.rows, self.stats.seconds
        newest, held = [row.newest for row in rows], [row.held for row in rows]
        ask = self._steady or Argmax(
            self._mask.after([len(row.tokens) for row in rows]), self._scores, self._near
        )
        if controller is not None:
            self._plan = controller.plan(len(rows))
        counts = self._counts()
        most = max(counts)
        called = clock()
        if most:
            drafted, best, confidence, drafting = self.drafts.draft_and_verify(
                newest, self.state, counts, ask, held=held, min_survival=self._plan.min_survival
            )
        else:
            drafted, confidence, drafting = [[] for _ in rows], None, 0.0
            self._forget()
            best = self.backend.extend([[token] for token in newest], self.state, ask)
        if self._replay is not None:
            self._replay.settle(rows, drafted, best)
        answered = clock()
        for n, row in enumerate(rows):
            if row.done:
                continue
            guesses, wanted = drafted[n], best.tokens[n]
            accepted = 0
            for guess, token in zip(guesses, wanted, strict=False):
                if guess != token:
                    break
                accepted += 1
            sure = () if confidence is None else confidence[n]
            count = row.take(guesses, accepted, wanted[accepted], sure)
            if best.log_probs is not None:
                row.log_probs += best.log_probs[n][:count]
            one = row.rounds[-1]
            self.stats.count(one, count)
            if controller is not None:
                controller.see_draft(counts[n], one.accepted)
        ended = clock()
        if controller is not None:
            checked = sum(map(len, drafted)) / len(rows)
            controller.see(len(rows), most, ended - started, drafting=drafting, checked=checked)
        seconds["draft"] += drafting
        seconds["verify"] += answered - called - drafting
        seconds["loop"] += called - started + ended - answered

    def _counts(self) -> list[int]:
        """Return how many tokens to draft for each row: none that could not be said."""
        most = self._plan.tokens
        if self.backend.max_length is not None:  # the longest row must be able to count them
            longest = max(row.held for row in self.rows)
            most = min(most, self.backend.max_length - longest - 1)
        if len(self.rows) == 1:
            return [min(most, self.rows[0].room)]
        return [0 if row.done else min(most, row.room) for row in self.rows]


class JudgedBatch(TandemBatch):
    """Rows that sample or trust the drafter: a draft is accepted by the rule of `accept.py`.

    Where blocks begin changes the text, so it depends on the row alone, and so do its numbers:
    sampling takes 2 * block + 1 of them a round whatever is done with them.
    """

    def _round(self) -> None:
        started = perf_counter()
        rows, config, seconds = self.rows, self.rows[0].config, self.stats.seconds
        self._forget()
        numbers = [row.stream.draw(2 * self.block + 1) for row in rows if row.stream is not None]
        counts = [0 if row.done else min(self.block, self._room(row)) for row in rows]
        draft = self._draft(counts, numbers, config.temperature)
        drafted = [[] for _ in rows] if draft is None else draft.tokens
        # Where no token of the model's own follows a whole draft, the last guess need not be fed.
        fed = [[row.newest, *guesses] for row, guesses in zip(rows, drafted, strict=True)]
        if config.gamma:
            fed = [tokens[: len(tokens) - 1] if tokens[1:] else tokens for tokens in fed]
        parts = self._parts(draft, counts, fed, numbers)
        called = perf_counter()
        verdicts: list[Any] = [None] * len(rows)
        log_probs: list[Any] = [[]] * len(rows)
        answers = self._ask(fed, parts)
        for part, judged in zip(parts, answers, strict=True):
            for place, n in enumerate(part.rows):
                verdicts[n] = judged.verdicts[place]
                if judged.log_probs is not None:
                    log_probs[n] = judged.log_probs[place]
        answered = perf_counter()
        sure = [()] * len(rows) if draft is None else draft.confidence
        for row, guesses, verdict, scores, one in zip(
            rows, drafted, verdicts, log_probs, sure, strict=True
        ):
            if not row.done:
                self._take(row, guesses, verdict, scores, one)
        seconds["draft"] += called - started
        seconds["verify"] += answered - called
        seconds["loop"] += perf_counter() - answered

    def _room(self, row: Row) -> int:
        """Return how many tokens a row could say and count to."""
        most = self.backend.max_length
        if most is None:
            return row.room
        return min(row.room, most - row.held - (row.config.gamma == 0))

    def _draft(
        self, counts: Sequence[int], numbers: Sequence[Sequence[float]], temperature: float
    ) -> Draft | None:
        """Guess tokens; with numbers they are drawn."""
        if not any(counts):
            return None
        newest = [row.newest for row in self.rows]
        if not numbers:
            return self.drafts.draft(newest, self.state, counts)
        uniform = [row[: max(counts)] for row in numbers]
        return self.drafts.draft(
            newest, self.state, counts, temperature=temperature, uniform=uniform
        )

    def _parts(
        self,
        draft: Draft | None,
        counts: Sequence[int],
        fed: Sequence[Sequence[int]],
        numbers: Sequence[Sequence[float]],
    ) -> list[Part]:
        """Ask about rows with equally long drafts together."""
        rows, block = self.rows, self.block
        config = rows[0].config
        alike: dict[int, list[int]] = {}
        for n, count in enumerate(counts):
            alike.setdefault(count, []).append(n)
        parts = []
        for count, places in alike.items():
            ask = Accept(
                None if draft is None or not count else draft.part(places, count),
                config.gamma,
                config.sampling if config.strategy == "sample" else None,
                [[*row[block : block + count], row[-1]] for row in (numbers[n] for n in places)]
                if numbers
                else (),
                self._mask.after([len(rows[n].tokens) for n in places]),
                self._scores,
            )
            parts.append(Part(places, len(fed[places[0]]), ask))
        return parts

    def _ask(self, fed: Sequence[Sequence[int]], parts: Sequence[Part]) -> list[Any]:
        if len(parts) == 1:
            return [self.backend.extend(fed, self.state, parts[0].ask)]
        return self.backend.extend(fed, self.state, Grouped(tuple(parts)))

    def _take(
        self,
        row: Row,
        drafted: Sequence[int],
        verdict: Verdict,
        log_probs: Sequence[float],
        confidence: Sequence[float],
    ) -> None:
        """Let a row say what was decided, and remember how it went."""
        count = row.take(drafted, *verdict, confidence)
        row.log_probs += log_probs[:count]
        self.stats.count(row.rounds[-1], count)


def draft_and_verify(
    backend: Backend,
    drafts: Drafts,
    newest: Sequence[int],
    state: State,
    tokens: Sequence[int],
    ask: Argmax,
    *,
    held: Sequence[int],
    min_survival: float,
) -> RoundOutput:
    """Do what `Drafts.draft_and_verify` says."""
    if list(held) != state.lengths:
        state.rollback(held)
    started = perf_counter()
    draft = drafts.draft(newest, state, tokens)
    drafting = perf_counter() - started
    kept = worth_checking(
        draft.tokens, draft.confidence, min_survival=min_survival, ends=backend.ends
    )
    drafted = [guesses[:kept] for guesses in draft.tokens]
    confidence = [sure[:kept] for sure in draft.confidence]
    fed = [[token, *guesses] for token, guesses in zip(newest, drafted, strict=True)]
    return RoundOutput(drafted, backend.extend(fed, state, ask), confidence, drafting)


def worth_checking(
    drafted: Sequence[Sequence[int]],
    confidence: Sequence[Sequence[float]],
    *,
    min_survival: float,
    ends: Collection[int],
) -> int:
    """Return how many drafts of each row to verify, at least one.

    They are those up to which, in the mean over rows that have any, all hold with a chance of
    `min_survival`. Nothing is said behind an end token, so nothing holds there, nor where a row has
    no more drafts.
    """
    products = [
        [*accumulate(sure[: up_to_end(guesses, ends)], mul)]
        for guesses, sure in zip(drafted, confidence, strict=True)
        if guesses
    ]
    columns = zip_longest(*products, fillvalue=0.0)
    chances = [sum(column) / len(products) for column in columns]
    return sum(chance > 0 and chance >= min_survival for chance in chances) or 1
