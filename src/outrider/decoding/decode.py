"""A list of requests: a session that is fed and drained."""

from collections.abc import Sequence

from outrider.decoding.controller import Controller
from outrider.decoding.memory import enough_memory
from outrider.decoding.protocol import Backend
from outrider.decoding.request import Hypothesis, Request
from outrider.decoding.session import Session
from outrider.decoding.settings import DecodeSettings
from outrider.decoding.statistics import Statistics

__all__ = ["AHEAD", "decode"]

AHEAD = 16
"""Tokens that greedy rows say at once: nobody sees them before the list is done."""


def decode(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeSettings,
    *,
    rows: int | None = None,
    tokens: int | None = None,
    controller: Controller | None = None,
    stats: Statistics | None = None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each request, best first, in the order of the requests.

    Args:
        backend: Who computes.
        requests: One for each row.
        config: Mode, strategy and their settings.
        rows: Rows in flight at most, every beam counted; None for all at once.
        tokens: Bound on what the rows in flight may hold together.
        controller: Chooses whether to draft, and how much, where every choice writes the same.
        stats: Told how it went.
    """
    most = max(1, len(requests) * config.beams * config.candidates) if rows is None else rows
    session = Session(
        backend, config, rows=most, tokens=tokens, controller=controller, stats=stats, ahead=AHEAD
    )
    for request in requests:
        session.add(request)
    with enough_memory(config, rows=len(requests)):
        done = session.drain()
    done.sort(key=lambda row: row.id)
    return [row.hypotheses() for row in done]
