"""Sentences per second with continuous batching, relative to batches of a fixed size.

Both have the same number of rows, and take texts in the given order. A fixed batch runs until its
longest text is finished; a session replaces finished rows immediately. Both take turns, so that
other load affects both, and their texts must be equal.
"""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from outrider.decoding import DecodeConfig, Request, Session, decode
from outrider.decoding.session import AHEAD
from outrider.errors import OutriderError
from outrider.runtime import Translator
from outrider.runtime.options import call_settings
from outrider.runtime.provenance import machine, versions


class Stay(NamedTuple):
    """A text, its row, and its first and last round."""

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
    """Time both variants for each mode, after a warm-up."""
    results = []
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
                raise OutriderError(f"mode {mode}: session and batches wrote different texts")
        pairs = zip(seconds["batches"], seconds["session"], strict=True)
        results.append(
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
        "modes": results,
        "machine": machine(),
        "versions": versions(),
    }


def _requests(translator: Translator, lines: Sequence[str], config: DecodeConfig) -> list[Request]:
    texts = translator.requests([line for line in lines if line.strip()], config)
    return [request for text in texts for request in text]


def _batches(
    translator: Translator, requests: Sequence[Request], config: DecodeConfig, rows: int
) -> list[tuple[int, ...]]:
    """Decode in consecutive batches of `rows` requests."""
    found = []
    for start in range(0, len(requests), rows):
        some = requests[start : start + rows]
        found += decode(translator.backend, some, config, controllers=translator.controllers)
    return [best.tokens for best, *_ in found]


def _session(
    translator: Translator, requests: Sequence[Request], config: DecodeConfig, rows: int
) -> list[tuple[int, ...]]:
    """Decode in a session, without streaming."""
    session = Session(
        translator.backend, config, rows=rows, controllers=translator.controllers, ahead=AHEAD
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
    """Return which text occupied which row in which rounds."""
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
        round_ = max((stay.last for stay in stays), default=0)
        stays += [stay._replace(text=stay.text + start) for stay in _watch(session, rows, round_)]
    return stays


def _watch(session: Session, rows: int, round_: int) -> list[Stay]:
    """Run a session to its end; a new text takes the first free row."""
    occupied: dict[int, tuple[int, int]] = {}
    stays: list[Stay] = []
    while session.busy:
        updates = session.step()
        for number in sorted({update.id for update in updates} - set(occupied)):
            used = {place for place, _ in occupied.values()}
            place = next(place for place in range(rows) if place not in used)
            occupied[number] = place, round_
        round_ += 1
        for update in updates:
            if update.hypotheses is not None:
                place, first = occupied.pop(update.id)
                stays.append(Stay(place, update.id, first, round_))
    return stays
