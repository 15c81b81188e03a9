"""Parallel generation: the whole text at once, then as many further passes as are asked for.

    ctc        every slot of the CTC decoder says a token or a blank
    drafter    one block over the whole text, all of it masked; the text ends at its end token

Several candidates, the likeliest text and others drawn from the slots, are scored by one pass of
the model, and the best is taken. See `writer.py` for the passes, `rescore.py` for the score.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Literal

from outrider.decoding.config import DecodeConfig
from outrider.decoding.protocol import Backend
from outrider.decoding.request import Hypothesis, Request, token_limit
from outrider.decoding.rescore import rescore
from outrider.decoding.statistics import Statistics
from outrider.decoding.writer import BlockWriter, CtcWriter, Text, Writer
from outrider.errors import ConfigError, InputError, ModelError, UnsupportedError

__all__ = ["parallel"]


def parallel(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeConfig,
    *,
    stats: Statistics | None = None,
) -> list[list[Hypothesis]]:
    """Return one hypothesis per request, in order; it has a score where the model was asked."""
    if not requests:
        return []
    _check(requests, config)
    stats, watch = Statistics() if stats is None else stats, _Watch()
    limits = [token_limit(backend, request, config) for request in requests]
    scored = config.candidates > 1 or config.scores
    kind: type[Writer] = CtcWriter if _uses_ctc(backend, config) else BlockWriter
    writer = kind(backend, requests, config, limits, scored=scored)
    watch.lap(stats, "encode")
    writer.refine()
    watch.lap(stats, "draft")
    found = [
        [_finish(text, limit, config) for text in texts]
        for texts, limit in zip(writer.texts(), limits, strict=True)
    ]
    watch.lap(stats, "loop")
    if scored:
        found = rescore(backend, writer.state, found)
        watch.lap(stats, "verify")
    for best, *_ in found:
        stats.rounds += 1 + config.iterations
        stats.tokens += len(best.tokens) + (best.finish == "eos")
    return [texts[:1] for texts in found]


class _Watch:
    """Books the time between two laps."""

    def __init__(self) -> None:
        self._since = perf_counter()

    def lap(self, stats: Statistics, part: str) -> None:
        now = perf_counter()
        stats.seconds[part] += now - self._since
        self._since = now


def _check(requests: Sequence[Request], config: DecodeConfig) -> None:
    if config.min_new_tokens:
        message = "mode parallel cannot hold an end token back; leave it out or use mode ar"
        raise ConfigError("min_new_tokens", message)
    if any(request.prompt for request in requests):
        raise InputError("mode parallel writes whole texts, it continues no prompt; use mode ar")
    if not all(request.source for request in requests):
        raise UnsupportedError(
            "mode parallel needs a source to read; a language model has mode ar and tandem"
        )


def _uses_ctc(backend: Backend, config: DecodeConfig) -> bool:
    wanted = config.decoder or _best_writer(backend, config)
    if wanted == "ctc" and backend.slots is None:
        raise ModelError("decoder ctc: this model has no CTC decoder")
    if wanted == "drafter" and backend.drafts is None:
        missing = "drafter" if config.decoder else "CTC decoder and no drafter"
        raise ModelError(f"mode parallel: this model has no {missing}")
    return wanted == "ctc"


def _best_writer(backend: Backend, config: DecodeConfig) -> Literal["ctc", "drafter"]:
    """CTC writes the better text in one pass; only the drafter was trained to look again."""
    looks_again = config.iterations > 0 and backend.drafts is not None
    return "ctc" if backend.slots is not None and not looks_again else "drafter"


def _finish(text: Text, limit: int, config: DecodeConfig) -> Hypothesis:
    """Cut a text where greedy decoding would have to stop."""
    if text.ended and len(text.tokens) < limit:
        return Hypothesis(tuple(text.tokens), "eos")
    return Hypothesis(tuple(text.tokens[: limit - config.force_eos]), "length")
