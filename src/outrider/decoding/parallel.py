"""Parallel generation: a whole text in one pass, then `iterations` refinement passes.

    CtcWriter           every slot of the CTC decoder yields a token or a blank
    BlockWriter         the drafter fills one fully masked block; the text ends at its end token
    ContinuationBatch   a language model's drafter writes block after block, unverified; the model
                        only reads each block, so that the next one continues from it

Several candidates, the likeliest text and others sampled from the slots, are scored in one pass of
the model, and the best is returned:

    score(y) = mean_t log p(y_t | y_<t, x)          the end token counts

Refinement is mask-predict (Ghazvininejad et al., 2019, arXiv:1904.09324): before pass i of n the
share i / n of the slots, those with the highest probability, is known; the others are predicted
again. The training of a CTC decoder reveals few slots, and fewer the better it gets (GLAT); with
half of them known it drops words. Its share is therefore `MOST_KNOWN` (1 - i / n). Rows are refined
independently and sample from their own seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from time import perf_counter
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from outrider.decoding.batch import Batch
from outrider.decoding.protocol import Backend, State
from outrider.decoding.queries import Forbidden, LogProbs, Nothing, Path
from outrider.decoding.request import Hypothesis, Request, Row, row_seed, up_to_end
from outrider.decoding.sampling import Stream
from outrider.decoding.statistics import Statistics
from outrider.errors import ConfigError, InputError, ModelError
from outrider.options import DecodeConfig

MOST_KNOWN = 0.15
"""Largest share of known slots of a CTC decoder: about what its training reveals."""
SLOTS_PER_TOKEN, SPARE_SLOTS = 1.5, 4
"""Length of the drafter's block: slots per source token, plus a constant."""

Tokens = NDArray[np.int64]
Probs = NDArray[np.float64]


class Text(NamedTuple):
    """One candidate."""

    tokens: list[int]
    """Without the end token."""
    ended: bool
    """Whether it ended; otherwise its slots were too few."""


class Writer:
    """Fills the slots of a batch and refines them."""

    state: State
    slots: list[int]
    """Slots of each row."""
    tokens_BU: Tokens
    """The token of each slot."""
    prob_BU: Probs
    """Its probability when it was last predicted."""

    def __init__(
        self,
        backend: Backend,
        requests: Sequence[Request],
        config: DecodeConfig,
        limits: Sequence[int],
        *,
        scored: bool,
    ) -> None:
        """Encode the sources; if texts will be `scored`, with capacity for `limits` tokens."""
        self.backend, self.requests, self.config = backend, requests, config
        self._open([request.source for request in requests], limits, scored)

    def refine(self) -> None:
        """Fill all slots, then predict the less certain ones again."""
        passes = self.config.iterations + 1
        self.tokens_BU, self.prob_BU = self._fill(None, last=passes == 1)
        for count in range(1, passes):
            share = self._share(count, passes)
            known_BU = _surest(self.tokens_BU, self.prob_BU, self._used(), share)
            tokens_BU, prob_BU = self._fill(known_BU, last=count == passes - 1)
            self.tokens_BU = np.where(known_BU >= 0, known_BU, tokens_BU)
            self.prob_BU = np.where(known_BU >= 0, self.prob_BU, prob_BU)

    def texts(self) -> list[list[Text]]:
        """Return the candidates of each request, the likeliest path first."""
        raise NotImplementedError

    def _open(self, sources: list[Sequence[int]], limits: Sequence[int], scored: bool) -> None:
        """Encode the sources."""
        raise NotImplementedError

    def _fill(self, known_BU: Tokens | None, *, last: bool) -> tuple[Tokens, Probs]:
        """Run one pass and return the likeliest token of every slot and its probability."""
        raise NotImplementedError

    def _used(self) -> list[int]:
        """Count the slots of each row that its text uses."""
        raise NotImplementedError

    def _share(self, count: int, passes: int) -> float:
        """Return the share of the used slots that are known before pass `count` of `passes`."""
        return count / passes

    def _uniform(self) -> list[list[list[float]]]:
        """Draw numbers for all candidates but the first, [B, N - 1, U], from each row's seed."""
        others, width = self.config.candidates - 1, max(self.slots)
        uniform = []
        for request, count in zip(self.requests, self.slots, strict=True):
            drawn = Stream(row_seed(request, self.config)).draw(others, count)
            uniform.append([[*numbers, *[0.0] * (width - count)] for numbers in drawn])
        return uniform


class CtcWriter(Writer):
    """Collapses the slots of the CTC decoder into texts."""

    def texts(self) -> list[list[Text]]:
        """Collapse the best path and the sampled ones."""
        return [
            [Text(collapse(path[:count], blank=self.backend.pad), True) for path in (best, *drawn)]
            for best, drawn, count in zip(
                self.tokens_BU.tolist(), self.drawn, self.slots, strict=True
            )
        ]

    def _open(self, sources: list[Sequence[int]], limits: Sequence[int], scored: bool) -> None:
        assert self.backend.slots is not None
        self.filler = self.backend.slots
        self.slots = [self.filler.per_token * len(source) for source in sources]
        capacity = max(limits) if scored else 0
        self.state = self.backend.encode(sources, capacity=capacity, parallel=True)
        # The blank is allowed, end tokens are not: a text ends with its slots.
        forbidden = {*self.config.suppress, *self.backend.ends} - {self.backend.pad}
        self.forbidden = Forbidden(tuple(sorted(forbidden)))
        self.drawn: list[list[list[int]]] = [[] for _ in sources]

    def _fill(self, known_BU: Tokens | None, *, last: bool) -> tuple[Tokens, Probs]:
        uniform = self._uniform() if last and self.config.candidates > 1 else None
        query = Path(self.forbidden, self.config.iterations > 0, uniform)
        known = None if known_BU is None else known_BU.tolist()
        paths = self.filler.fill(self.state, query, known)
        if uniform is not None:
            drawn_BNU = np.array(paths.drawn)
            if known_BU is not None:
                drawn_BNU = np.where(known_BU[:, None] >= 0, known_BU[:, None], drawn_BNU)
            self.drawn = drawn_BNU.tolist()
        tokens_BU = np.array(paths.tokens)
        prob_BU = np.array(paths.prob) if paths.prob else np.zeros(tokens_BU.shape)
        return tokens_BU, prob_BU

    def _used(self) -> list[int]:
        return self.slots

    def _share(self, count: int, passes: int) -> float:
        return MOST_KNOWN * (1 - count / passes)


class BlockWriter(Writer):
    """Fills one block with the drafter, as long as the text may be."""

    @classmethod
    def beyond(
        cls,
        backend: Backend,
        config: DecodeConfig,
        state: State,
        newest: Sequence[int],
        slots: Sequence[int],
    ) -> Self:
        """Return a writer that continues after the `newest` token of each row of a state."""
        assert backend.drafts is not None
        writer = cls.__new__(cls)
        writer.backend, writer.config, writer.drafts = backend, config, backend.drafts
        writer.state, writer.newest, writer.slots = state, list(newest), list(slots)
        return writer

    def texts(self) -> list[list[Text]]:
        """Cut the likeliest block and the sampled ones at their end tokens."""
        blocks = [[best] for best in self.tokens_BU.tolist()]
        if self.config.candidates > 1:
            for row, drawn in zip(blocks, self._draw(self.config.candidates), strict=True):
                row += drawn
        rows = zip(blocks, self.slots, strict=True)
        return [[self._read(tokens[:slots]) for tokens in blocks] for blocks, slots in rows]

    def _open(self, sources: list[Sequence[int]], limits: Sequence[int], scored: bool) -> None:
        assert self.backend.drafts is not None
        self.drafts = self.backend.drafts
        # A position depends only on those before it, so padding to the longest row changes nothing.
        self.slots = [
            min(
                limit,
                self.drafts.longest_text,
                math.ceil(SLOTS_PER_TOKEN * len(source)) + SPARE_SLOTS,
            )
            for source, limit in zip(sources, limits, strict=True)
        ]
        capacity = max(limits) if scored else max(self.slots)
        self.state = self.backend.encode(sources, capacity=capacity, drafting=True)
        self.newest = [self.backend.start] * len(sources)

    def _fill(self, known_BU: Tokens | None, *, last: bool) -> tuple[Tokens, Probs]:
        unknown = [[-1] * max(self.slots)] * len(self.slots)
        known = unknown if known_BU is None else known_BU.tolist()
        tokens, prob = self.drafts.predict(self.newest, self.state, known)
        return np.array(tokens), np.array(prob)

    def _used(self) -> list[int]:
        """Count the slots up to the end token, inclusive."""
        rows = zip(self.tokens_BU.tolist(), self.slots, strict=True)
        return [min(up_to_end(tokens, self.backend.ends), slots) for tokens, slots in rows]

    def _draw(self, candidates: int) -> list[list[list[int]]]:
        """Sample blocks from the drafter; rows are repeated for all candidates."""
        self.state = self.state.repeat_rows(candidates)
        likeliest = [0.0] * max(self.slots)  # unused: the first candidate exists already
        uniform = [numbers for row in self._uniform() for numbers in (likeliest, *row)]
        newest = [token for token in self.newest for _ in range(candidates)]
        counts = [max(self.slots)] * len(newest)
        drawn = self.drafts.draft(newest, self.state, counts, uniform=uniform).tokens
        return [drawn[n + 1 : n + candidates] for n in range(0, len(drawn), candidates)]

    def _read(self, tokens: list[int]) -> Text:
        forbidden = {*self.config.suppress, self.backend.pad}
        tokens = tokens[: up_to_end(tokens, self.backend.ends)]
        ended = tokens[-1] in self.backend.ends
        kept = tokens[:-1] if ended else tokens
        return Text([token for token in kept if token not in forbidden], ended)


def collapse(path: Sequence[int], *, blank: int) -> list[int]:
    """Turn a CTC path into tokens: merge equal neighbours, drop blanks."""
    return [token for token, _ in groupby(path) if token != blank]


def _surest(tokens_BU: Tokens, prob_BU: Probs, used: Sequence[int], share: float) -> Tokens:
    """Keep the likeliest share of each row's used slots; -1 elsewhere."""
    used_B1 = np.array(used)[:, None]
    prob_BU = np.where(np.arange(tokens_BU.shape[1]) >= used_B1, -1.0, prob_BU)
    rank_BU = np.argsort(np.argsort(-prob_BU, axis=1, kind="stable"), axis=1)
    return np.where(rank_BU >= np.floor(used_B1 * share), -1, tokens_BU)


class ContinuationBatch(Batch):
    """Rows of one config that grow by whole blocks."""

    drafting = True

    def __init__(self, backend: Backend, stats: Statistics, config: DecodeConfig) -> None:
        assert backend.drafts is not None
        super().__init__(backend, stats, block=backend.drafts.longest)
        self.config, self.drafts = config, backend.drafts

    def _round(self) -> None:
        started, seconds = perf_counter(), self.stats.seconds
        rows = self.rows
        self._rollback()
        newest = [row.last for row in rows]
        blocks = self._write(newest)
        drafted = perf_counter()
        added = []
        for row, block in zip(rows, blocks, strict=True):
            before = len(row.tokens)
            if not row.done:
                count = row.accept(block, len(block), None)
                self.stats.count(row.rounds[-1], count)
            added.append(row.tokens[before:])
        self._read(newest, added)
        seconds["draft"] += drafted - started
        seconds["verify"] += perf_counter() - drafted

    def _write(self, newest: list[int]) -> list[list[int]]:
        """Fill a block for every row that is not done, up to its limit."""
        slots = [0 if row.done else min(self.block, row.remaining) for row in self.rows]
        if self.backend.max_length is not None:  # the longest row needs positions for the block
            positions = self.backend.max_length - max(row.cached for row in self.rows) - 1
            slots = [min(count, max(positions, 1)) for count in slots]
        writer = BlockWriter.beyond(self.backend, self.config, self.state, newest, slots)
        writer.refine()
        forbidden = {*self.config.suppress, self.backend.pad}
        blocks = []
        for tokens, count in zip(writer.tokens_BU.tolist(), slots, strict=True):
            allowed = [token for token in tokens[:count] if token not in forbidden]
            # A block without an allowed token ends the text: no token is left to continue from.
            blocks.append(allowed or [self.backend.eos])
        return blocks

    def _read(self, newest: Sequence[int], added: list[list[int]]) -> None:
        """Feed the model the added tokens, except the last of each row."""
        fed = [[last, *tokens][: len(tokens)] for last, tokens in zip(newest, added, strict=True)]
        if not self.config.scores:
            if not all(row.done for row in self.rows):
                self.backend.extend(fed, self.state, Nothing(), last=True)
            return
        longest = max(map(len, added))
        padded = [[*tokens, *[self.backend.pad] * (longest - len(tokens))] for tokens in added]
        log_probs = self.backend.extend(fed, self.state, LogProbs(padded, self.backend.ends))
        for row, scores, tokens in zip(self.rows, log_probs, added, strict=True):
            row.log_probs += scores[: len(tokens)]


def rescore(
    backend: Backend, state: State, texts: list[list[Hypothesis]]
) -> list[list[Hypothesis]]:
    """Score the texts of each row and sort them, best first; rows have equally many.

    Nothing has been fed to `state` yet; its rows may have been repeated for all texts already.
    """
    candidates = len(texts[0])
    if candidates > 1 and len(state.lengths) == len(texts):
        state = state.repeat_rows(candidates)
    scores = iter(_scores(backend, state, [text for row in texts for text in row]))
    scored = [[replace(text, score=next(scores)) for text in row] for row in texts]
    return [sorted(row, key=_score, reverse=True) for row in scored]


def _scores(backend: Backend, state: State, texts: list[Hypothesis]) -> list[float]:
    rows = [[*text.tokens, *[backend.eos] * (text.finish == "eos")] for text in texts]
    fed = [[backend.start, *tokens][: max(1, len(tokens))] for tokens in rows]
    longest = max(map(len, fed))
    padded = [[*tokens, *[backend.pad] * (longest - len(tokens))] for tokens in rows]
    log_probs = backend.extend(fed, state, LogProbs(padded, backend.ends))
    return [
        math.fsum(row[: len(tokens)]) / max(1, len(tokens))
        for row, tokens in zip(log_probs, rows, strict=True)
    ]


def _score(text: Hypothesis) -> float:
    assert text.score is not None
    return text.score


class ParallelBatch:
    """Rows of one config, each written whole in the round after it joined."""

    def __init__(self, backend: Backend, stats: Statistics, config: DecodeConfig) -> None:
        self.backend, self.stats, self.config = backend, stats, config
        self.rows: list[Row] = []

    def join(self, new: Sequence[Row]) -> None:
        """Add rows; they are decoded by the next step."""
        self.rows += new

    def compact(self) -> None:
        """Remove rows that were stopped."""
        self.rows = [row for row in self.rows if not row.done]

    def step(self) -> None:
        """Write the texts of all rows."""
        self.compact()
        if not self.rows:
            return
        backend, config, rows, stats = self.backend, self.config, self.rows, self.stats
        watch = _Watch(stats)
        scored = config.candidates > 1 or config.scores
        kind: type[Writer] = CtcWriter if _uses_ctc(backend, config) else BlockWriter
        limits = [row.limit for row in rows]
        writer = kind(backend, [row.request for row in rows], config, limits, scored=scored)
        watch.lap("encode")
        writer.refine()
        watch.lap("draft")
        candidates = [
            [_finish(text, row) for text in texts]
            for texts, row in zip(writer.texts(), rows, strict=True)
        ]
        watch.lap("loop")
        if scored:
            candidates = rescore(backend, writer.state, candidates)
            watch.lap("verify")
        for row, (best, *_) in zip(rows, candidates, strict=True):
            stats.rounds += 1 + config.iterations
            stats.tokens += len(best.tokens) + (best.finish == "eos")
            row.best, row.done = [best], True
        self.rows = []


class _Watch:
    """Adds the time between two laps to the statistics."""

    def __init__(self, stats: Statistics) -> None:
        self._stats, self._since = stats, perf_counter()

    def lap(self, part: str) -> None:
        now = perf_counter()
        self._stats.seconds[part] += now - self._since
        self._since = now


def check_parallel(backend: Backend, request: Request, config: DecodeConfig) -> None:
    """Check that mode parallel can serve a request."""
    if config.min_new_tokens:
        message = "mode parallel cannot delay the end token; leave it out or use mode ar"
        raise ConfigError("min_new_tokens", message)
    if not request.source:
        _check_continuation(backend, config)
    elif request.prompt or request.start is not None:
        raise InputError("mode parallel does not continue a target prompt; use mode ar")


def _check_continuation(backend: Backend, config: DecodeConfig) -> None:
    if config.candidates > 1:
        message = "mode parallel writes one continuation of a prompt; leave it out or use mode ar"
        raise ConfigError("candidates", message)
    if config.decoder == "ctc":
        raise ModelError("decoder ctc: a language model has no source to read")


def _uses_ctc(backend: Backend, config: DecodeConfig) -> bool:
    """CTC writes the better text in one pass; only the drafter was trained to refine it."""
    refines = config.iterations > 0 and backend.drafts is not None
    best = "ctc" if backend.slots is not None and not refines else "drafter"
    return (config.decoder or best) == "ctc"


def _finish(text: Text, row: Row) -> Hypothesis:
    """Cut a text at its limit or at an end token of its request."""
    tokens, ended, limit = text.tokens, text.ended, row.limit
    if row.request.ends and not row.ends.isdisjoint(tokens):
        tokens, ended = tokens[: up_to_end(tokens, row.ends) - 1], True
    if ended and len(tokens) < limit:
        return Hypothesis(tuple(tokens), "eos")
    return Hypothesis(tuple(tokens[: limit - row.config.force_eos]), "length")
