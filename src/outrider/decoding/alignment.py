"""Alignment of finished texts with their sources, from cross-attention.

A pass over the finished text gives the weights of every layer, head and step. Target token t is
aligned with the source token that some heads attend to most, in step t or in step t + 1, when the
token is the input. `find_heads` finds these heads by translations of random tokens, so no model
needs aligned data; `lab/studies/alignment_error.py` measures the result.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from outrider.decoding.protocol import Backend
from outrider.decoding.request import Request, Row

Weights = npt.NDArray[np.float32]

BATCH_WEIGHTS = 1 << 22
"""Most attention weights of one pass; a row may have more."""
MOST_WEIGHTS = 1 << 26
"""Most attention weights of a row; longer rows are not aligned."""
PROBES, PROBE_TOKENS = 24, 6
"""Texts that heads are found with, and tokens of each."""
NEARLY = 0.9


class AlignmentHeads(NamedTuple):
    """Heads whose mean weights align."""

    heads: tuple[tuple[int, int], ...]
    """Layer and head, from 0."""
    later: bool
    """Whether they align in the step after the one that generates a token."""

    def weights(self, weights_LHTS: Weights) -> Weights:
        """Return the weights [T, S] of each token, from those of the steps and of one more."""
        steps = slice(1, None) if self.later else slice(None, -1)
        layers, heads = zip(*self.heads, strict=True)
        mean_TS: Weights = weights_LHTS[list(layers), list(heads)].mean(0)[steps]
        return mean_TS


@runtime_checkable
class AttendingBackend(Protocol):
    """A backend that returns the weights of cross-attention."""

    config: Any
    """The `ModelSpec`."""
    source_vocab_size: int
    alignment_heads: AlignmentHeads | None
    """None until they are needed."""

    def cross_attention(
        self, source: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
    ) -> list[Weights]:
        """Return the weights [L, H, T, S] of each row of target tokens on its source."""
        ...


def align(backend: Backend, rows: Sequence[Row]) -> None:
    """Set the alignment of the hypotheses of finished rows."""
    if not isinstance(backend, AttendingBackend):
        return
    layers, heads = backend.config.decoder_depth, backend.config.num_attention_heads
    batch: list[tuple[Row, int]] = []
    size = 0
    for row in rows:
        row.best = row.hypotheses()
        opening = len(row.request.prompt) + 1
        for rank, hypothesis in enumerate(row.best):
            length = opening + len(hypothesis.tokens)
            weights = layers * heads * length * len(row.request.source)
            if not hypothesis.tokens or weights > MOST_WEIGHTS:
                continue
            if batch and size + weights > BATCH_WEIGHTS:
                _align(backend, batch)
                batch, size = [], 0
            batch.append((row, rank))
            size += weights
    if batch:
        _align(backend, batch)


def _align(backend: Backend, batch: Sequence[tuple[Row, int]]) -> None:
    assert isinstance(backend, AttendingBackend)
    if backend.alignment_heads is None:
        backend.alignment_heads = find_heads(backend)
    weights = _attend(backend, [(row.request, row.best[rank].tokens) for row, rank in batch])
    for (row, rank), weights_LHTS in zip(batch, weights, strict=True):
        weights_TS = backend.alignment_heads.weights(weights_LHTS)
        weights_TS[:, [token in backend.ends for token in row.request.source]] = -1.0
        row.best = [*row.best]
        aligned = tuple(weights_TS.argmax(axis=1).tolist())
        row.best[rank] = replace(row.best[rank], alignment=aligned)


def _attend(backend: Any, texts: Sequence[tuple[Request, Sequence[int]]]) -> list[Weights]:
    """Return the weights [L, H, T + 1, S] of the tokens of each text."""
    openings = [request.opening(backend) for request, _ in texts]
    fed = [[*opening, *tokens] for opening, (_, tokens) in zip(openings, texts, strict=True)]
    weights: list[Weights] = backend.cross_attention([request.source for request, _ in texts], fed)
    return [w[:, :, len(opening) - 1 :] for opening, w in zip(openings, weights, strict=True)]


def find_heads(backend: Any) -> AlignmentHeads:
    """Return the heads that attend to most source tokens, and to these with most weight.

    score(head, step) = mean over texts of  |{argmax_j a[t, j]}| / min(T, S) * mean_j max_t a[t, j]

    The texts are translations of random tokens. The best head chooses the step; heads with nearly
    its score in this step are added.
    """
    choose = random.Random(0).randrange
    sources = [
        [choose(backend.source_vocab_size) for _ in range(PROBE_TOKENS)] for _ in range(PROBES)
    ]
    requests = [Request([*source, backend.eos]) for source in sources]
    limit = 3 * PROBE_TOKENS
    state = backend.encode([request.source for request in requests], capacity=limit + 1)
    written: list[list[int]] = [[backend.start] for _ in requests]
    while len(written[0]) <= limit:
        left, last = limit + 1 - len(written[0]), [row[-1] for row in written]
        new = backend.greedy(last, state, (backend.pad,), steps=left, ends=())
        written = [row + tokens for row, tokens in zip(written, new, strict=True)]
    ends = {*backend.ends}
    rows = [[*takewhile(lambda token: token not in ends, row[1:])] for row in written]
    texts = [(request, row) for request, row in zip(requests, rows, strict=True) if row]
    scores: dict[tuple[bool, int, int], float] = {}
    for weights_LHTS in _attend(backend, texts):
        for later in (False, True):
            steps = slice(1, None) if later else slice(None, -1)
            for spot in np.ndindex(weights_LHTS.shape[:2]):
                weights_TS = weights_LHTS[spot][steps, :PROBE_TOKENS]
                covered = len(set(weights_TS.argmax(1).tolist())) / min(weights_TS.shape)
                key = (later, *spot)
                scores[key] = scores.get(key, 0.0) + covered * float(weights_TS.max(0).mean())
    if not scores:
        return AlignmentHeads(((backend.config.decoder_depth - 1, 0),), later=False)
    best = max(scores, key=scores.__getitem__)
    chosen = [key for key in scores if key[0] == best[0] and scores[key] >= NEARLY * scores[best]]
    return AlignmentHeads(tuple((layer, head) for _, layer, head in chosen), later=best[0])
