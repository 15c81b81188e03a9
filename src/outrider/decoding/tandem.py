"""Tandem decoding: a drafter guesses a block of tokens, the model checks it in one pass.

    draft     d_1 .. d_k after the newest token, all at once
    verify    one pass of the model over [newest, d_1 .. d_k]
    accept    the drafts that the model confirms, and one token of its own after them
    forget    what the model took in beyond that

Each row advances by what it accepted; nobody waits. With gamma = 0 the text is that of the model
alone, token for token (greedy) or in distribution (sampling): only the number of passes drops. See
`accept.py` for the rule, `policy.py` for the choice of k.

The text never depends on how fast something was. Block sizes, and whether to draft at all, are
chosen by measured time only where every choice writes the same: greedy with gamma 0, where nothing
is rounded differently (`epsilon` 0) or near-ties are settled, in blocks and in plain steps alike
(`replay.py`): in float32 always, in lower precision with `strict`. There, without `strict`, near-
ties are too many to settle unasked, so every batch is drafted in blocks of one size.
"""

import math
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from outrider.decoding.accept import Accept, Verdict, compare
from outrider.decoding.config import DecodeConfig
from outrider.decoding.greedy import greedy
from outrider.decoding.mask import TokenMask
from outrider.decoding.policy import DraftPolicy, Plan
from outrider.decoding.prefill import open_for_drafting
from outrider.decoding.protocol import Backend, Draft, Drafts, State
from outrider.decoding.questions import Forbidden, Likeliest
from outrider.decoding.replay import FINE, Replay, closeness, settled_greedy
from outrider.decoding.request import Hypothesis, Request, row_seed, token_limit
from outrider.decoding.row import Row
from outrider.decoding.statistics import Statistics
from outrider.decoding.stepwise import CARRIED, to_hypothesis
from outrider.decoding.stream import Stream
from outrider.errors import ConfigError, ModelError

__all__ = ["may_choose", "tandem"]

BLOCK = 8
"""Tokens drafted at once where neither the user nor a policy says."""
PLANNED = 8
"""Rounds after which a policy is asked again."""


def tandem(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeConfig,
    *,
    policy: DraftPolicy | None = None,
    stats: Statistics | None = None,
) -> list[Hypothesis]:
    """Return one hypothesis per request, in order, and add to `stats` what happened.

    A policy chooses the size of the blocks, and whether to draft at all, where that is free
    (`may_choose`).
    """
    if not requests:
        return []
    stats = Statistics() if stats is None else stats
    block = _block(backend, config)
    if config.strategy == "sample" or config.gamma > 0:
        return _free(backend, requests, config, block, stats)
    if policy is None or not may_choose(backend, config):
        return _Batch(backend, requests, config, block=block, stats=stats).decode()
    rows, length = len(requests), _likely_length(backend, requests, config)
    objection = policy.objection(rows, length=length) or policy.speeds.objection(rows)
    started = perf_counter()
    if objection is None:
        block = len(policy.acceptance)
        batch = _Batch(backend, requests, config, block=block, policy=policy, stats=stats)
        found = batch.decode()
    else:
        found = _without_drafting(backend, requests, config, stats)
        policy.relax()
        stats.note(f"{objection}: decoded without drafting")
    tokens, seconds = sum(len(one.tokens) for one in found), perf_counter() - started
    policy.speeds.note(rows, drafting=objection is None, tokens=tokens, seconds=seconds)
    return found


def may_choose(backend: Backend, config: DecodeConfig) -> bool:
    """Whether blocks of any size, and plain steps too, write the same text.

    Then a policy may choose between them, unless the user has.
    """
    exact = config.strategy == "greedy" and config.gamma == 0
    return exact and config.draft_tokens is None and _settles(backend, config)


def _settles(backend: Backend, config: DecodeConfig) -> bool:
    """Whether near-ties are computed again; where nothing is rounded there are none."""
    return config.strict or backend.epsilon <= FINE


def _likely_length(backend: Backend, requests: Sequence[Request], config: DecodeConfig) -> float:
    """Guess how many tokens a row will have: as many as its source, or all it may have."""
    lengths = [
        min(len(request.source) or math.inf, token_limit(backend, request, config))
        for request in requests
    ]
    return sum(lengths) / len(lengths)


def _block(backend: Backend, config: DecodeConfig) -> int:
    """Return how many tokens are drafted at once where no policy chooses."""
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


def _free(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeConfig,
    block: int,
    stats: Statistics,
) -> list[Hypothesis]:
    """Decode where the text depends on where blocks begin, so that must depend on the row alone.

    Rows that can reach the end of the model's positions need shorter blocks there. All rows of a
    batch have blocks of one size, so these go alone.
    """
    results: list[Hypothesis | None] = [None] * len(requests)
    batches, together = [], []
    for row, request in enumerate(requests):
        end = len(request.prompt) + token_limit(backend, request, config) + block
        if backend.max_length is not None and end > backend.max_length:
            batches.append([row])
        else:
            together.append(row)
    for rows in [*batches, together] if together else batches:
        batch = _Batch(backend, [requests[row] for row in rows], config, block=block, stats=stats)
        for row, hypothesis in zip(rows, batch.decode(), strict=True):
            results[row] = hypothesis
    return [hypothesis for hypothesis in results if hypothesis is not None]


def _without_drafting(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeConfig,
    stats: Statistics,
) -> list[Hypothesis]:
    """Decode greedily, near-ties settled as drafting settles them."""
    started = perf_counter()
    if backend.epsilon > 0:
        found = settled_greedy(backend, requests, config, stats)
    else:
        found = greedy(backend, requests, config)
    stats.seconds["plain"] += perf_counter() - started
    stats.plain_rows += len(requests)
    return found


_Decided = tuple[list[list[int]], list[Verdict], list[list[float]], list[list[float]]]
"""For each row: its draft, what became of it, log-probabilities, how sure the drafter was."""


class _Batch:
    """The rows in flight, and all that a round needs."""

    def __init__(
        self,
        backend: Backend,
        requests: Sequence[Request],
        config: DecodeConfig,
        *,
        block: int,
        stats: Statistics,
        policy: DraftPolicy | None = None,
    ) -> None:
        self._since = perf_counter()
        assert backend.drafts is not None
        self.drafts: Drafts = backend.drafts
        self.backend, self.config, self.stats = backend, config, stats
        self.block, self.policy = block, policy
        self._plan, self._planned_for, self._age = Plan(0, 0.0), 0, 0
        self._mask = TokenMask(config, ends=backend.ends)
        limits = [token_limit(backend, request, config) for request in requests]
        self.state: State = open_for_drafting(backend, requests, limits, block=block)
        self.rows = [
            Row(n, request, limit, [backend.start, *request.prompt][-1], len(request.prompt))
            for n, (request, limit) in enumerate(zip(requests, limits, strict=True))
        ]
        self._streams: list[Stream] = []
        if config.strategy == "sample":
            self._streams = [Stream(row_seed(request, config)) for request in requests]
        self._replay: Replay | None = None
        if self._exact and backend.epsilon > 0 and _settles(backend, config):
            self._replay = Replay(backend, config, stats)
        self._lap("encode")

    @property
    def _exact(self) -> bool:
        """Whether the text is that of greedy decoding; then only tokens are compared."""
        return self.config.strategy == "greedy" and self.config.gamma == 0

    def decode(self) -> list[Hypothesis]:
        """Run rounds until every row is done."""
        rows = self.rows
        while self.rows:
            self._round()
        return [
            to_hypothesis(
                row.tokens,
                row.log_probs,
                row.limit,
                ends=self.backend.ends,
                config=self.config,
                rounds=row.rounds,
            )
            for row in rows
        ]

    def _round(self) -> None:
        """Forget what was not accepted, draft, verify, accept."""
        slots = self._slots()
        decide = self._compare if self._exact else self._judge
        for row, drafted, verdict, log_probs, confidence in zip(
            self.rows, *decide(slots), strict=True
        ):
            if not row.done:
                self._take(row, drafted, verdict, log_probs, confidence)
        self._part()
        self._lap("loop")

    def _compare(self, slots: int) -> _Decided:
        """Draft and verify in one call, and accept what the model would have said itself."""
        newest = [row.newest for row in self.rows]
        near = closeness(self.backend) if self._replay is not None else 0.0
        ask = Likeliest(self._forbidden(), self.config.scores, near)
        if slots:
            drafted, best, confidence, drafting = self.drafts.draft_and_verify(
                newest,
                self.state,
                [slots] * len(newest),
                ask,
                held=[row.held for row in self.rows],
                min_survival=self._plan.min_survival,
            )
        else:
            drafted, confidence, drafting = [[] for _ in newest], None, 0.0
            self._forget()
            best = self.backend.extend([[token] for token in newest], self.state, ask)
        if self._replay is not None:
            self._replay.settle(self.rows, drafted, best)
        self._lap("verify")
        self.stats.seconds["draft"] += drafting
        self.stats.seconds["verify"] -= drafting
        verdicts = list(map(compare, drafted, best.tokens))
        nothing: list[list[float]] = [[] for _ in drafted]
        return drafted, verdicts, best.log_probs or nothing, confidence or nothing

    def _judge(self, slots: int) -> _Decided:
        """Draft, verify, and accept by the rule of `accept.py`.

        Sampling takes 2 * block + 1 numbers a round whatever is done with them, so a row's text
        depends on its seed and its own past alone.
        """
        config = self.config
        self._forget()
        sampling, numbers = None, []
        if config.strategy == "sample":
            sampling = config.sampling
            numbers = [self._streams[row.index].draw(2 * self.block + 1) for row in self.rows]
        draft = self._draft(slots, numbers)
        drafted = _nothing(self.rows) if draft is None else draft.tokens
        # Where no token of the model's own follows a whole draft, the last guess need not be fed.
        fed = [[row.newest, *guesses] for row, guesses in zip(self.rows, drafted, strict=True)]
        if config.gamma and draft is not None:
            fed = [tokens[:-1] for tokens in fed]
        ask = Accept(
            draft,
            config.gamma,
            sampling,
            [[*row[self.block : self.block + slots], row[-1]] for row in numbers],
            self._forbidden(),
            config.scores,
        )
        self._lap("draft")
        judged = self.backend.extend(fed, self.state, ask)
        self._lap("verify")
        log_probs = judged.log_probs or _nothing(self.rows)
        sure = _nothing(self.rows) if draft is None else draft.confidence
        return drafted, judged.verdicts, log_probs, sure

    def _draft(self, slots: int, numbers: Sequence[Sequence[float]]) -> Draft | None:
        """Guess tokens; with numbers they are drawn."""
        if not slots:
            return None
        newest = [row.newest for row in self.rows]
        if not numbers:
            return self.drafts.draft(newest, self.state, [slots] * len(newest))
        uniform = [row[:slots] for row in numbers]
        return self.drafts.draft(
            newest,
            self.state,
            [slots] * len(newest),
            temperature=self.config.temperature,
            uniform=uniform,
        )

    def _forbidden(self) -> Forbidden:
        return self._mask.after([len(row.tokens) for row in self.rows])

    def _slots(self) -> int:
        """Return how many tokens to draft: none that could not be said or counted to."""
        slots = max(row.room for row in self.rows if not row.done)
        if self.backend.max_length is not None:
            longest = max(row.held for row in self.rows) + (self.config.gamma == 0)
            slots = min(slots, self.backend.max_length - longest)
        return min(slots, self.block if self.policy is None else self._planned(self.policy))

    def _planned(self, policy: DraftPolicy) -> int:
        """Return how many tokens the plan drafts; made anew now and then, and when rows left."""
        rows = len(self.rows)
        if not self._plan.tokens or rows != self._planned_for or self._age == PLANNED:
            self._plan, self._planned_for, self._age = policy.plan(rows), rows, 0
        self._age += 1
        if not self._plan.tokens:
            policy.relax()
            self.stats.note("drafts held too rarely: some steps were taken without drafting")
        return self._plan.tokens

    def _take(
        self,
        row: Row,
        drafted: list[int],
        verdict: Verdict,
        log_probs: list[float],
        confidence: list[float],
    ) -> None:
        """Let a row say what was decided, and remember how it went."""
        count = row.take(drafted, *verdict, ends=self.backend.ends, confidence=confidence)
        row.log_probs += log_probs[:count]
        one = row.rounds[-1]
        self.stats.count(one, count)
        if self.policy is not None:
            self.policy.learn(len(one.drafted), one.accepted)

    def _forget(self) -> None:
        """Roll back what the last round took in beyond what was accepted."""
        if self.rows[0].rounds:
            self.state.rollback([row.held for row in self.rows])

    def _part(self) -> None:
        """Let finished rows leave once they are enough."""
        open_ = [n for n, row in enumerate(self.rows) if not row.done]
        if not open_:
            self.rows = []
        elif len(self.rows) - len(open_) > CARRIED * len(self.rows):
            self.state.select(open_)
            self.rows = [self.rows[n] for n in open_]

    def _lap(self, part: str) -> None:
        now = perf_counter()
        self.stats.seconds[part] += now - self._since
        self._since = now


def _nothing(rows: Sequence[object]) -> list[list[Any]]:
    return [[] for _ in rows]
