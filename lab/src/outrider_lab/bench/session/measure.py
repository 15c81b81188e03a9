"""Sentences a second of a session that is fed from a queue, against batches of a fixed size.

Both have the same places for rows, and the texts come in the order they are in. A fixed batch goes
on until its longest text is done; in a session whoever waits takes a place as soon as it is left.
The two take turns, so that other load on the machine hits both alike, and their texts must be the
same.
"""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from outrider.decoding import DecodeSettings, Request, Session, decode
from outrider.decoding.session import AHEAD
from outrider.errors import OutriderError
from outrider.runtime import Translator
from outrider.runtime.options import call_settings
from outrider.runtime.provenance import machine, versions

__all__ = ["Stay", "measure_session", "watch_batches", "watch_session"]


class Stay(NamedTuple):
    """Which text held a place, from one round to another."""

    place: int
    text: int
    first: int
    last: int


def measure_session(
    translator: Translator,
    lines: Sequence[str],
    *,
    rows: int,
    modes: Sequence[str],
    repeats: int,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Time both ways for each mode; the first round of each is a warm-up."""
    found = []
    for mode in modes:
        config = call_settings(translator.backend, translator.defaults, {"mode": mode})
        requests = _requests(translator, lines, config)
        seconds: dict[str, list[float]] = {"batches": [], "session": []}
        ways = {"batches": _batches, "session": _session}
        for turn in range(repeats + 1):
            texts = {}
            for name, decode_all in ways.items() if turn % 2 else reversed(ways.items()):
                report(f"{mode}: {name}, {turn} of {repeats}")
                started = perf_counter()
                texts[name] = decode_all(translator, requests, config, rows)
                if turn:
                    seconds[name].append(perf_counter() - started)
            if texts["batches"] != texts["session"]:
                raise OutriderError(f"mode {mode}: a session wrote other texts than batches did")
        pairs = zip(seconds["batches"], seconds["session"], strict=True)
        found.append(
            {
                "mode": mode,
                "ratio": median(before / after for before, after in pairs),
                "sentences_per_second": {
                    name: len(requests) / median(times) for name, times in seconds.items()
                },
                "seconds": seconds,
                "same_text": True,
            }
        )
    return {
        "task": "session",
        "rows": rows,
        "sentences": len(lines),
        "repeats": repeats,
        "modes": found,
        "machine": machine(),
        "versions": versions(),
    }


def _requests(
    translator: Translator, lines: Sequence[str], config: DecodeSettings
) -> list[Request]:
    texts = translator.requests([line for line in lines if line.strip()], config)
    return [request for text in texts for request in text]


def _batches(
    translator: Translator, requests: Sequence[Request], config: DecodeSettings, rows: int
) -> list[tuple[int, ...]]:
    """Decode so many requests after the other."""
    found = []
    for start in range(0, len(requests), rows):
        some = requests[start : start + rows]
        found += decode(translator.backend, some, config, controller=translator.controller)
    return [best.tokens for best, *_ in found]


def _session(
    translator: Translator, requests: Sequence[Request], config: DecodeSettings, rows: int
) -> list[tuple[int, ...]]:
    """Feed a session as a server does that streams nothing: with news of rows as they are done."""
    session = Session(
        translator.backend, config, rows=rows, controller=translator.controller, ahead=AHEAD
    )
    numbers = [session.add(request) for request in requests]
    found: dict[int, tuple[int, ...]] = {}
    while session.busy:
        for update in session.step():
            if update.hypotheses is not None:
                found[update.id] = update.hypotheses[0].tokens
    return [found[number] for number in numbers]


def watch_session(
    translator: Translator, lines: Sequence[str], *, rows: int, **options: Any
) -> list[Stay]:
    """Return who held which place in which rounds."""
    config = call_settings(translator.backend, translator.defaults, options)
    session = Session(translator.backend, config, rows=rows)
    for request in _requests(translator, lines, config):
        session.add(request)
    return _watch(session, rows, 0)


def watch_batches(
    translator: Translator, lines: Sequence[str], *, rows: int, **options: Any
) -> list[Stay]:
    """Return the same for batches of a fixed size."""
    config = call_settings(translator.backend, translator.defaults, options)
    requests = _requests(translator, lines, config)
    stays: list[Stay] = []
    for start in range(0, len(requests), rows):
        session = Session(translator.backend, config, rows=rows)
        for request in requests[start : start + rows]:
            session.add(request)
        begun = max((stay.last for stay in stays), default=0)
        stays += [stay._replace(text=stay.text + start) for stay in _watch(session, rows, begun)]
    return stays


def _watch(session: Session, rows: int, begun: int) -> list[Stay]:
    """Drain a session; a row that comes takes the first place that is free."""
    held: dict[int, tuple[int, int]] = {}
    stays: list[Stay] = []
    while session.busy:
        news = session.step()
        for number in sorted({update.id for update in news} - set(held)):
            taken = {place for place, _ in held.values()}
            place = next(place for place in range(rows) if place not in taken)
            held[number] = place, begun
        begun += 1
        for update in news:
            if update.hypotheses is not None:
                place, first = held.pop(update.id)
                stays.append(Stay(place, update.id, first, begun))
    return stays
