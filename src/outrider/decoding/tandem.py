"""Tandem decoding: a drafter guesses a block of tokens, the model checks it in one pass.

    draft     d_1 .. d_k after the newest token, all at once
    verify    one pass of the model over [newest, d_1 .. d_k]
    accept    the drafts that the model confirms, and one token of its own after them
    forget    what the model took in beyond that

Each row advances by what it accepted; nobody waits. With gamma = 0 the text is that of the model
alone, token for token (greedy) or in distribution (sampling): only the number of passes drops. See
`judge.py` for the rule, `profile.py` for the choice of k.

The text never depends on how fast something was. Block sizes, and whether to draft at all, are
chosen by measured time only where every choice writes the same: greedy with gamma 0, where nothing
is rounded differently (`epsilon` 0) or near-ties are settled, in blocks and in plain steps alike
(`replay.py`): in float32 always, in lower precision with `strict`. There, without `strict`, near-
ties are too many to settle unasked, so every batch is drafted in blocks of one size.
"""

import math
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import accumulate
from operator import mul
from time import perf_counter

import torch
from torch import Tensor

from outrider.decoding.config import DecodeConfig
from outrider.decoding.greedy import greedy
from outrider.decoding.ids import to_ids
from outrider.decoding.judge import Drawn, Judge, Likeliest, Verdict, compare
from outrider.decoding.likeliest import Shortcut, shortcut
from outrider.decoding.mask import TokenMask
from outrider.decoding.prefill import open_for_drafting
from outrider.decoding.profile import Plan, Profile
from outrider.decoding.protocol import Backend, Draft, State
from outrider.decoding.replay import FINE, Replay, settled_greedy
from outrider.decoding.request import Hypothesis, Request, token_limit, up_to_end
from outrider.decoding.row import Row
from outrider.decoding.statistics import Statistics
from outrider.decoding.stepwise import CARRIED, finish
from outrider.errors import ConfigError, ModelError

__all__ = ["may_choose", "tandem", "worth_checking"]

BLOCK = 8
"""Tokens drafted at once where neither the user nor a profile says."""
PLANNED = 8
"""Rounds after which a profile is asked again."""


@torch.inference_mode()
def tandem(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeConfig,
    *,
    profile: Profile | None = None,
    stats: Statistics | None = None,
) -> list[Hypothesis]:
    """Return one hypothesis per request, in order, and add to `stats` what happened.

    A profile chooses the size of the blocks, and whether to draft at all, where that is free
    (`may_choose`).
    """
    if not requests:
        return []
    stats = Statistics() if stats is None else stats
    block = _block(backend, config)
    if config.strategy == "sample" or config.gamma > 0:
        return _free(backend, requests, config, block, stats)
    if profile is None or not may_choose(backend, config):
        return _Batch(backend, requests, config, block=block, stats=stats).decode()
    rows, length = len(requests), _likely_length(backend, requests, config)
    objection = profile.objection(rows, length=length) or profile.paces.objection(rows)
    started = perf_counter()
    if objection is None:
        block = len(profile.hold)
        batch = _Batch(backend, requests, config, block=block, profile=profile, stats=stats)
        found = batch.decode()
    else:
        found = _without_drafting(backend, requests, config, stats)
        profile.hope()
        stats.note(f"{objection}: decoded without drafting")
    tokens, seconds = sum(len(one.tokens) for one in found), perf_counter() - started
    profile.paces.note(rows, drafting=objection is None, tokens=tokens, seconds=seconds)
    return found


def may_choose(backend: Backend, config: DecodeConfig) -> bool:
    """Whether blocks of any size, and plain steps too, write the same text.

    Then a profile may choose between them, unless the user has.
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
    """Return how many tokens are drafted at once where no profile chooses."""
    longest, wanted = backend.longest_draft, config.draft_tokens
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
        profile: Profile | None = None,
    ) -> None:
        self._since = perf_counter()
        self.backend, self.config, self.stats = backend, config, stats
        self.block, self.profile = block, profile
        self._plan, self._planned_for, self._age = Plan(0, 0.0), 0, 0
        limits = [token_limit(backend, request, config) for request in requests]
        self.state: State = open_for_drafting(backend, requests, limits, block=block)
        self.rows = [
            Row(n, request, limit, [backend.start, *request.prompt][-1], len(request.prompt))
            for n, (request, limit) in enumerate(zip(requests, limits, strict=True))
        ]
        self.past_logits: Shortcut | None = None
        self.judge: Judge
        if config.strategy == "sample":
            self.judge = Drawn(config, self.rows, block)
        else:
            in_doubt = backend.epsilon > 0 and config.gamma == 0 and _settles(backend, config)
            replay = Replay(backend, config, stats) if in_doubt else None
            self.judge = Likeliest(config.gamma, replay)
            if config.gamma == 0 and replay is None:
                self.past_logits = shortcut(backend, config)
        self._lap("encode")

    @cached_property
    def device(self) -> torch.device:
        """Where the backend wants its tensors; a shortcut needs none."""
        return self.state.length_B.device

    @cached_property
    def mask(self) -> TokenMask:
        """What must not be said; a shortcut is told so itself."""
        return TokenMask(self.config, ends=self.backend.ends)

    def decode(self) -> list[Hypothesis]:
        """Run rounds until every row is done."""
        rows = self.rows
        while self.rows:
            self._round()
        return [
            finish(
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
        log_probs: list[list[float]] = [[]] * len(self.rows)
        if self.past_logits is not None:
            drafted, verdicts = self._ride(self.past_logits, slots)
        else:
            self._forget()
            newest_B1 = to_ids([[row.newest] for row in self.rows], self.device)
            draft, drafted = self._draft(newest_B1, slots)
            verdicts, log_probs = self._verify(draft, drafted)
        for row, guesses, verdict, scores in zip(
            self.rows, drafted, verdicts, log_probs, strict=True
        ):
            if not row.done:
                self._take(row, guesses, verdict, scores)
        self._part()
        self._lap("loop")

    def _ride(self, way: Shortcut, slots: int) -> tuple[list[list[int]], list[Verdict]]:
        """Draft and verify in one call."""
        newest = [row.newest for row in self.rows]
        if slots:
            drafted, best, drafting = way.backend.ride(
                newest,
                self.state,
                slots,
                held=[row.held for row in self.rows],
                worth=self._plan.worth,
                forbidden=way.forbidden,
            )
        else:
            drafted, drafting = [[] for _ in newest], 0.0
            self._forget()
            fed = [[token] for token in newest]
            best = way.backend.likeliest(fed, self.state, way.forbidden)
        self._lap("verify")
        self.stats.seconds["draft"] += drafting
        self.stats.seconds["verify"] -= drafting
        return drafted, list(map(compare, drafted, best))

    def _verify(
        self, draft: Draft | None, drafted: list[list[int]]
    ) -> tuple[list[Verdict], list[list[float]]]:
        """Let the model judge every row's draft; the second are log-probabilities, if asked for.

        Where no token of its own follows a whole draft, the last guess need not be fed.
        """
        log_probs: list[list[float]] = [[]] * len(self.rows)
        fed = [[row.newest, *guesses] for row, guesses in zip(self.rows, drafted, strict=True)]
        if self.config.gamma and draft is not None:
            fed = [tokens[:-1] for tokens in fed]
        tokens_BT = to_ids(fed, self.device)
        self._lap("draft")
        logits_BTV = self.backend.extend(tokens_BT, self.state)
        self._lap("verify")
        normaliser_BT = logits_BTV.logsumexp(-1) if self.config.scores else None
        self.mask.block(logits_BTV, [len(row.tokens) for row in self.rows])
        verdicts = self.judge(self.rows, drafted, draft, logits_BTV)
        if normaliser_BT is not None:
            log_probs = _log_probs(drafted, verdicts, logits_BTV, normaliser_BT)
        return verdicts, log_probs

    def _draft(self, newest_B1: Tensor, slots: int) -> tuple[Draft | None, list[list[int]]]:
        """Guess tokens; return what is to be verified, too."""
        uniform_BK = self.judge.numbers(self.rows, slots)
        if not slots:
            return None, [[] for _ in self.rows]
        if uniform_BK is not None:
            draft = self.backend.draft(
                newest_B1,
                self.state,
                slots,
                temperature=self.config.temperature,
                uniform_BK=uniform_BK.to(self.device),
            )
        else:
            draft = self.backend.draft(newest_B1, self.state, slots)
        drafted: list[list[int]] = draft.tokens_BK.tolist()
        if self.profile is None:
            return draft, drafted
        # With a profile gamma is 0: the judge looks at the tokens alone, so only they are cut.
        confidence = draft.confidence_BK.tolist()
        kept = worth_checking(drafted, confidence, worth=self._plan.worth, ends=self.backend.ends)
        return draft, [guesses[:kept] for guesses in drafted]

    def _slots(self) -> int:
        """Return how many tokens to draft: none that could not be said or counted to."""
        slots = max(row.room for row in self.rows if not row.done)
        if self.backend.max_length is not None:
            longest = max(row.held for row in self.rows) + (self.config.gamma == 0)
            slots = min(slots, self.backend.max_length - longest)
        return min(slots, self.block if self.profile is None else self._planned(self.profile))

    def _planned(self, profile: Profile) -> int:
        """Return how many tokens the plan drafts; made anew now and then, and when rows left."""
        rows = len(self.rows)
        if not self._plan.tokens or rows != self._planned_for or self._age == PLANNED:
            self._plan, self._planned_for, self._age = profile.plan(rows), rows, 0
        self._age += 1
        if not self._plan.tokens:
            profile.hope()
            self.stats.note("drafts held too rarely: some steps were taken without drafting")
        return self._plan.tokens

    def _take(self, row: Row, drafted: list[int], verdict: Verdict, log_probs: list[float]) -> None:
        """Let a row say what was decided, and remember how it went."""
        count = row.take(drafted, *verdict, ends=self.backend.ends)
        row.log_probs += log_probs[:count]
        one = row.rounds[-1]
        self.stats.count(one, count)
        if self.profile is not None:
            self.profile.learn(len(one.drafted), one.accepted)

    def _forget(self) -> None:
        """Roll back what the last round took in beyond what was accepted."""
        if self.rows[0].rounds:
            self.state.rollback(to_ids([row.held for row in self.rows], self.device))

    def _part(self) -> None:
        """Let finished rows leave once they are enough."""
        open_ = [n for n, row in enumerate(self.rows) if not row.done]
        if not open_:
            self.rows = []
        elif len(self.rows) - len(open_) > CARRIED * len(self.rows):
            self.state.select(to_ids(open_, self.device))
            self.rows = [self.rows[n] for n in open_]

    def _lap(self, part: str) -> None:
        now = perf_counter()
        self.stats.seconds[part] += now - self._since
        self._since = now


def worth_checking(
    drafted: Sequence[Sequence[int]],
    confidence: Sequence[Sequence[float]],
    *,
    worth: float,
    ends: Collection[int],
) -> int:
    """Return how many drafts to verify, at least one; `Chooser.ride` keeps as many.

    They are those up to which, in the mean over rows, all hold with a chance of `worth`. Nothing
    is said behind an end token, so nothing holds there.
    """
    products = []
    for guesses, sure in zip(drafted, confidence, strict=True):
        said = up_to_end(guesses, ends)
        products.append([*accumulate(sure[:said], mul), *[0.0] * (len(guesses) - said)])
    chances = [sum(column) / len(products) for column in zip(*products, strict=True)]
    return sum(chance > 0 and chance >= worth for chance in chances) or 1


def _log_probs(
    drafted: Sequence[Sequence[int]],
    verdicts: Sequence[Verdict],
    logits_BTV: Tensor,
    normaliser_BT: Tensor,
) -> list[list[float]]:
    """Return the model's log-probability of what each row would say if its room allowed."""
    said = [
        [*row[:accepted], *([] if token is None else [token]), *row[accepted:]]
        for row, (accepted, token) in zip(drafted, verdicts, strict=True)
    ]
    said = [tokens[: logits_BTV.shape[1]] for tokens in said]
    said_BT1 = torch.tensor(said, device=logits_BTV.device)[..., None]
    log_probs: list[list[float]] = (
        logits_BTV.gather(-1, said_BT1)[..., 0] - normaliser_BT
    ).tolist()
    return log_probs
