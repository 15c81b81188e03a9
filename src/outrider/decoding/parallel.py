"""Parallel generation: the whole text at once, then as many further passes as are asked for.

    ctc        every slot of the CTC decoder says a token or a blank
    drafter    one block over the whole text, all of it masked; the text ends at its end token

A language model has no source that would say how long its text is: see `continuation.py`.
Several candidates, the likeliest text and others drawn from the slots, are scored by one pass of
the model, and the best is taken. See `writer.py` for the passes, `rescore.py` for the score.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Literal

from outrider.decoding.protocol import Backend
from outrider.decoding.request import Hypothesis, Request, up_to_end
from outrider.decoding.rescore import rescore
from outrider.decoding.row import Row
from outrider.decoding.settings import DecodeSettings
from outrider.decoding.statistics import Statistics
from outrider.decoding.writer import BlockWriter, CtcWriter, Text, Writer
from outrider.errors import ConfigError, InputError, ModelError

__all__ = ["ParallelBatch", "check_parallel"]


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
