"""Requests of mixed lengths, decoded in batches that hold no more than a set number of tokens."""

from collections.abc import Iterator, Sequence

from outrider.decoding import Backend, Controller, DecodeSettings, Hypothesis, Request, decode
from outrider.decoding.request import needs
from outrider.decoding.statistics import Statistics

__all__ = ["decode_in_batches", "plan"]


def decode_in_batches(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeSettings,
    *,
    batch_tokens: int,
    controller: Controller | None = None,
    stats: Statistics | None = None,
) -> list[list[Hypothesis]]:
    """Decode any number of requests with bounded memory; results in the order of the requests."""
    cost = [needs(backend, request, config)[1] for request in requests]
    # Where rows are padded, each takes as much as the dearest: those of like cost go together.
    # Elsewhere each takes its own, and whoever is done makes room for the next.
    dearest_first = sorted(range(len(cost)), key=lambda row: -cost[row])
    groups = plan(cost, batch_tokens) if backend.carried else [dearest_first]
    results: list[list[Hypothesis]] = [[] for _ in requests]
    for rows in groups:
        found = decode(
            backend,
            [requests[row] for row in rows],
            config,
            tokens=batch_tokens,
            controller=controller,
            stats=stats,
        )
        for row, hypotheses in zip(rows, found, strict=True):
            results[row] = hypotheses
    return results


def plan(cost: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Group rows of similar cost, dearest first, so that rows x dearest stays within the budget.

    A row that alone exceeds the budget gets a batch of its own.
    """
    order = sorted(range(len(cost)), key=lambda row: -cost[row])
    start = 0
    while start < len(order):
        rows = max(1, budget // max(1, cost[order[start]]))
        yield order[start : start + rows]
        start += rows
