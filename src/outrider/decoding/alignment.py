"""Alignment of finished texts with their sources, from cross-attention.

A pass over the finished text gives the attention weights. With guided alignment (Marian's students
and OPUS-MT), a head of the last layer is trained to attend to the source token that the next target
token translates. Other models have heads that do so untrained.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from outrider.decoding.protocol import Backend
from outrider.decoding.request import Row

BATCH_WEIGHTS = 1 << 22
"""Most attention weights of one pass; a row may have more."""
MOST_WEIGHTS = 1 << 26
"""Most attention weights of a row; longer rows are not aligned."""


@runtime_checkable
class AttendingBackend(Protocol):
    """A backend that returns the weights of cross-attention."""

    config: Any
    """The `ModelSpec`."""
    alignment_heads: tuple[tuple[int, int], ...]
    """Decoder layer and head, from 0, of the heads whose mean weights align; empty for the first
    head of the last layer."""

    def cross_attention(
        self, source: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
    ) -> list[npt.NDArray[np.float32]]:
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
    heads = backend.alignment_heads or ((backend.config.decoder_depth - 1, 0),)
    sources, fed, openings = [], [], []
    for row, rank in batch:
        opening, tokens = row.request.opening(backend), row.best[rank].tokens
        sources.append(row.request.source)
        fed.append([*opening, *tokens[:-1]])
        openings.append(len(opening) - 1)
    weights = backend.cross_attention(sources, fed)
    for (row, rank), first, weights_LHTS in zip(batch, openings, weights, strict=True):
        picked = [weights_LHTS[layer, head, first:] for layer, head in heads]
        mean_TS = np.mean(picked, axis=0)
        aligned = tuple(mean_TS.argmax(axis=1).tolist())
        row.best = [*row.best]
        row.best[rank] = replace(row.best[rank], alignment=aligned)
