"""Parallel generation: the whole text at once, then as many further passes as are asked for.

    ctc        every slot of the CTC decoder says a token or a blank
    drafter    one block over the whole text, all of it masked; the text ends at its end token

A language model has no source that would say how long its text is: see `continuation.py`.
Several candidates, the likeliest text and others drawn from the slots, are scored by one pass of
the model, and the best is taken. See `writer.py` for the passes, `rescore.py` for the score.

Who writes a whole text at once: the CTC decoder over its slots, or the drafter over one block.

Both can look again (mask-predict, Ghazvininejad et al., 2019, arXiv:1904.09324): before pass i of n
the share i / n of the slots, those that were surest so far, are known; the others are asked again.
The training of a CTC decoder reveals few slots to it, and fewer the better it gets (GLAT): where
half of them are known it drops words. So for it that share is `MOST_KNOWN` (1 - i / n). Each row is
refined by itself, and what it draws comes from its own seed.

Parallel continuation: a language model's drafter writes block after block, and nobody checks.

A round fills one block at once, asks its less certain places again if that is wanted (`writer.py`),
and lets the model take the block in, which says nothing to it: it only reads, so that the next
block goes on from there. At gamma 0 tandem decoding keeps of such a block what the model would have
said; here all of it stands.

Which of several texts the model finds likeliest, in one pass over all of them.

score(y) = mean_t log p(y_t | y_<t, x)          the end token counts
"""

import math
from collections.abc import Sequence
from itertools import groupby
from time import perf_counter
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from outrider.decoding.batch import Batch
from outrider.decoding.protocol import Backend, State
from outrider.decoding.queries import Forbidden, LogProbs, Nothing, Path
from outrider.decoding.request import Hypothesis, Request, Row, row_seed, up_to_end
from outrider.decoding.sampling import Stream
from outrider.decoding.settings import DecodeSettings
from outrider.decoding.statistics import Statistics
from outrider.errors import ConfigError, InputError, ModelError

__all__ = [
    "BlockWriter",
    "ContinuationBatch",
    "CtcWriter",
    "ParallelBatch",
    "Text",
    "Writer",
    "check_parallel",
    "collapse",
    "rescore",
]

MOST_KNOWN = 0.15
"""Most of its slots that a CTC decoder is told: about as many as its training reveals."""
SLOTS_PER_TOKEN, SPARE_SLOTS = 1.5, 4
"""Length of the drafter's block: so much for each token of the source, and so much more."""

Tokens = NDArray[np.int64]
Probs = NDArray[np.float64]


class Text(NamedTuple):
    """One candidate."""

    tokens: list[int]
    """Without the end token."""
    ended: bool
    """Whether it ended, or its slots were too few."""


class Writer:
    """Fills the slots of a batch, again and again if asked to."""

    state: State
    slots: list[int]
    """Slots of each row."""
    tokens_BU: Tokens
    """What each slot says."""
    prob_BU: Probs
    """How likely it found that when it was last asked."""

    def __init__(
        self,
        backend: Backend,
        requests: Sequence[Request],
        config: DecodeSettings,
        limits: Sequence[int],
        *,
        scored: bool,
    ) -> None:
        """Read the sources; where texts will be `scored` the state has room for `limits` tokens."""
        self.backend, self.requests, self.config = backend, requests, config
        self._open([request.source for request in requests], limits, scored)

    def refine(self) -> None:
        """Fill all slots, then ask the less certain ones again."""
        passes = self.config.iterations + 1
        self.tokens_BU, self.prob_BU = self._fill(None, last=passes == 1)
        for count in range(1, passes):
            share = self._share(count, passes)
            known_BU = _surest(self.tokens_BU, self.prob_BU, self._used(), share)
            tokens_BU, prob_BU = self._fill(known_BU, last=count == passes - 1)
            self.tokens_BU = np.where(known_BU >= 0, known_BU, tokens_BU)
            self.prob_BU = np.where(known_BU >= 0, self.prob_BU, prob_BU)

    def texts(self) -> list[list[Text]]:
        """Return the candidates of each request, what the slots say first."""
        raise NotImplementedError

    def _open(self, sources: list[Sequence[int]], limits: Sequence[int], scored: bool) -> None:
        """Read the sources."""
        raise NotImplementedError

    def _fill(self, known_BU: Tokens | None, *, last: bool) -> tuple[Tokens, Probs]:
        """Run one pass: the likeliest token of every slot, and its probability."""
        raise NotImplementedError

    def _used(self) -> list[int]:
        """Count the slots of each row that its text is made of."""
        raise NotImplementedError

    def _share(self, count: int, passes: int) -> float:
        """Return the share of the used slots that are known before pass `count` of `passes`."""
        return count / passes

    def _uniform(self) -> list[list[list[float]]]:
        """Draw numbers for all candidates but the first, [B, N - 1, U], each row its own."""
        others, most = self.config.candidates - 1, max(self.slots)
        found = []
        for request, count in zip(self.requests, self.slots, strict=True):
            drawn = Stream(row_seed(request, self.config)).draw(others, count)
            found.append([[*numbers, *[0.0] * (most - count)] for numbers in drawn])
        return found


class CtcWriter(Writer):
    """Reads texts off the slots of the CTC decoder."""

    def texts(self) -> list[list[Text]]:
        """Collapse the best path and those drawn beside it."""
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
        # The blank is no token of a text, and a text ends with its slots.
        forbidden = {*self.config.suppress, *self.backend.ends} - {self.backend.pad}
        self.forbidden = Forbidden(tuple(sorted(forbidden)))
        self.drawn: list[list[list[int]]] = [[] for _ in sources]

    def _fill(self, known_BU: Tokens | None, *, last: bool) -> tuple[Tokens, Probs]:
        uniform = self._uniform() if last and self.config.candidates > 1 else None
        ask = Path(self.forbidden, self.config.iterations > 0, uniform)
        known = None if known_BU is None else known_BU.tolist()
        found = self.filler.fill(self.state, ask, known)
        if uniform is not None:
            drawn_BNU = np.array(found.drawn)
            if known_BU is not None:  # slots that are known stand
                drawn_BNU = np.where(known_BU[:, None] >= 0, known_BU[:, None], drawn_BNU)
            self.drawn = drawn_BNU.tolist()
        tokens_BU = np.array(found.tokens)
        prob_BU = np.array(found.prob) if found.prob else np.zeros(tokens_BU.shape)
        return tokens_BU, prob_BU

    def _used(self) -> list[int]:
        return self.slots

    def _share(self, count: int, passes: int) -> float:
        return MOST_KNOWN * (1 - count / passes)


class BlockWriter(Writer):
    """Lets the drafter fill one block, as long as the text may be."""

    @classmethod
    def beyond(
        cls,
        backend: Backend,
        config: DecodeSettings,
        state: State,
        newest: Sequence[int],
        slots: Sequence[int],
    ) -> Self:
        """Return one that goes on from the `newest` token of each row of a state."""
        assert backend.drafts is not None
        writer = cls.__new__(cls)
        writer.backend, writer.config, writer.drafts = backend, config, backend.drafts
        writer.state, writer.newest, writer.slots = state, list(newest), list(slots)
        return writer

    def texts(self) -> list[list[Text]]:
        """Read the likeliest block and those drawn beside it up to their end tokens."""
        blocks = [[best] for best in self.tokens_BU.tolist()]
        if self.config.candidates > 1:
            for row, drawn in zip(blocks, self._draw(self.config.candidates), strict=True):
                row += drawn
        rows = zip(blocks, self.slots, strict=True)
        return [[self._read(tokens[:slots]) for tokens in found] for found, slots in rows]

    def _open(self, sources: list[Sequence[int]], limits: Sequence[int], scored: bool) -> None:
        assert self.backend.drafts is not None
        self.drafts = self.backend.drafts
        # A place depends on those before it only, so a longer neighbour does not change a row.
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
        """A text is made of everything up to its end token, that one included."""
        rows = zip(self.tokens_BU.tolist(), self.slots, strict=True)
        return [min(up_to_end(tokens, self.backend.ends), slots) for tokens, slots in rows]

    def _draw(self, candidates: int) -> list[list[list[int]]]:
        """Draw blocks from the drafter; the rows are repeated for all candidates."""
        self.state = self.state.repeat_rows(candidates)
        likeliest = [0.0] * max(self.slots)  # the first candidate is written already
        uniform = [numbers for row in self._uniform() for numbers in (likeliest, *row)]
        newest = [token for token in self.newest for _ in range(candidates)]
        counts = [max(self.slots)] * len(newest)
        drawn = self.drafts.draft(newest, self.state, counts, uniform=uniform).tokens
        return [drawn[n + 1 : n + candidates] for n in range(0, len(drawn), candidates)]

    def _read(self, tokens: list[int]) -> Text:
        forbidden = {*self.config.suppress, self.backend.pad}
        tokens = tokens[: up_to_end(tokens, self.backend.ends)]
        ended = tokens[-1] in self.backend.ends
        words = tokens[:-1] if ended else tokens
        return Text([token for token in words if token not in forbidden], ended)


def collapse(path: Sequence[int], *, blank: int) -> list[int]:
    """Read the slots of a CTC decoder as a text: merge equal neighbours, drop blanks."""
    return [token for token, _ in groupby(path) if token != blank]


def _surest(tokens_BU: Tokens, prob_BU: Probs, used: Sequence[int], share: float) -> Tokens:
    """Keep a share of each row's used slots, the likeliest; -1 elsewhere."""
    used_B1 = np.array(used)[:, None]
    prob_BU = np.where(np.arange(tokens_BU.shape[1]) >= used_B1, -1.0, prob_BU)
    rank_BU = np.argsort(np.argsort(-prob_BU, axis=1, kind="stable"), axis=1)
    return np.where(rank_BU >= np.floor(used_B1 * share), -1, tokens_BU)


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


def rescore(
    backend: Backend, state: State, found: list[list[Hypothesis]]
) -> list[list[Hypothesis]]:
    """Give every text its score and sort those of a row, best first; rows have equally many.

    Nothing has been fed to `state` yet; its rows may have been repeated for all texts already.
    """
    candidates = len(found[0])
    if candidates > 1 and len(state.lengths) == len(found):
        state = state.repeat_rows(candidates)
    scores = iter(_scores(backend, state, [one for row in found for one in row]))
    rated = [[Hypothesis(one.tokens, one.finish, next(scores)) for one in row] for row in found]
    return [sorted(row, key=_score, reverse=True) for row in rated]


def _scores(backend: Backend, state: State, texts: list[Hypothesis]) -> list[float]:
    said = [[*text.tokens, *[backend.eos] * (text.finish == "eos")] for text in texts]
    fed = [[backend.start, *tokens][: max(1, len(tokens))] for tokens in said]
    longest = max(map(len, fed))
    padded = [[*tokens, *[backend.pad] * (longest - len(tokens))] for tokens in said]
    found = backend.extend(fed, state, LogProbs(padded, backend.ends))
    return [
        math.fsum(row[: len(tokens)]) / max(1, len(tokens))
        for row, tokens in zip(found, said, strict=True)
    ]


def _score(text: Hypothesis) -> float:
    assert text.score is not None
    return text.score


class ParallelBatch:
    """Rows of one config, whose whole texts are written in the round after they came."""

    def __init__(self, backend: Backend, stats: Statistics, config: DecodeSettings) -> None:
        self.backend, self.stats, self.config = backend, stats, config
        self.rows: list[Row] = []

    def join(self, new: Sequence[Row]) -> None:
        """Take rows in; nothing is done yet."""
        self.rows += new

    def tidy(self) -> None:
        """Let rows leave that were stopped."""
        self.rows = [row for row in self.rows if not row.done]

    def step(self) -> None:
        """Write the texts of all rows; they have a score where the model was asked."""
        self.tidy()
        if not self.rows:
            return
        backend, config, rows, stats = self.backend, self.config, self.rows, self.stats
        watch = _Watch()
        scored = config.candidates > 1 or config.scores
        kind: type[Writer] = CtcWriter if _uses_ctc(backend, config) else BlockWriter
        limits = [row.limit for row in rows]
        writer = kind(backend, [row.request for row in rows], config, limits, scored=scored)
        watch.lap(stats, "encode")
        writer.refine()
        watch.lap(stats, "draft")
        found = [
            [_finish(text, row) for text in texts]
            for texts, row in zip(writer.texts(), rows, strict=True)
        ]
        watch.lap(stats, "loop")
        if scored:
            found = rescore(backend, writer.state, found)
            watch.lap(stats, "verify")
        for row, (best, *_) in zip(rows, found, strict=True):
            stats.rounds += 1 + config.iterations
            stats.tokens += len(best.tokens) + (best.finish == "eos")
            row.best, row.done = [best], True
        self.rows = []


class _Watch:
    """Books the time between two laps."""

    def __init__(self) -> None:
        self._since = perf_counter()

    def lap(self, stats: Statistics, part: str) -> None:
        now = perf_counter()
        stats.seconds[part] += now - self._since
        self._since = now


def check_parallel(backend: Backend, request: Request, config: DecodeSettings) -> None:
    """Refuse what cannot be written all at once."""
    if config.min_new_tokens:
        message = "mode parallel cannot hold an end token back; leave it out or use mode ar"
        raise ConfigError("min_new_tokens", message)
    if not request.source:
        _check_continuation(backend, config)
    elif request.prompt or request.start is not None:
        raise InputError("mode parallel writes whole texts, it continues no prompt; use mode ar")
    _uses_ctc(backend, config)


def _check_continuation(backend: Backend, config: DecodeSettings) -> None:
    """Refuse what a language model cannot write block by block."""
    if config.candidates > 1:
        message = "mode parallel continues a prompt in one way; leave it out or use mode ar"
        raise ConfigError("candidates", message)
    if config.decoder == "ctc":
        raise ModelError("decoder ctc: a language model has no source for it to read")


def _uses_ctc(backend: Backend, config: DecodeSettings) -> bool:
    wanted = config.decoder or _best_writer(backend, config)
    if wanted == "ctc" and backend.slots is None:
        raise ModelError("decoder ctc: this model has no CTC decoder")
    if wanted == "drafter" and backend.drafts is None:
        missing = "drafter" if config.decoder else "CTC decoder and no drafter"
        raise ModelError(f"mode parallel: this model has no {missing}")
    return wanted == "ctc"


def _best_writer(backend: Backend, config: DecodeSettings) -> Literal["ctc", "drafter"]:
    """CTC writes the better text in one pass; only the drafter was trained to look again."""
    looks_again = config.iterations > 0 and backend.drafts is not None
    return "ctc" if backend.slots is not None and not looks_again else "drafter"


def _finish(text: Text, row: Row) -> Hypothesis:
    """Cut a text where greedy decoding would have to stop."""
    tokens, ended, limit = text.tokens, text.ended, row.limit
    if row.request.ends and not row.ends.isdisjoint(tokens):
        tokens, ended = tokens[: up_to_end(tokens, row.ends) - 1], True
    if ended and len(tokens) < limit:
        return Hypothesis(tuple(tokens), "eos")
    return Hypothesis(tuple(tokens[: limit - row.config.force_eos]), "length")
