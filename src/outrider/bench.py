"""Measures the speed of models by decoding mode, batch size and number of threads.

Models and modes alternate on the same batches, so that other load on the machine affects all alike.
The first pass is a warm-up; the speed is the median of the others.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from outrider.backends.native import NativeBackend
from outrider.data.lines import text_lines
from outrider.decoding.request import check_mode
from outrider.decoding.statistics import Statistics
from outrider.errors import DataError, ModelError
from outrider.runtime import Generator, Translator, load
from outrider.runtime.memory import peak_bytes
from outrider.runtime.options import decode_settings

BATCHES = (1, 8, 32)
MODES = ("ar", "tandem", "parallel")
NEW_TOKENS = 64
"""Default tokens that a language model generates for each prompt."""
ONE_BATCH = 1 << 20
"""Token budget at which no batch is divided."""
LONGEST = 500
"""Most characters of a line that is decoded."""


@dataclass
class _Entry:
    """One model in one mode at one batch size."""

    name: str
    model: Translator | Generator
    mode: str
    threads: int
    seconds: list[float] = field(default_factory=list)
    texts: list[list[str]] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)

    def decode(self, batch: Sequence[str], max_new_tokens: int | None) -> list[str]:
        """Translate or continue one batch."""
        options: dict[str, Any] = {"mode": self.mode, "batch_tokens": ONE_BATCH}
        if isinstance(self.model, Translator):
            options["split"] = False
        elif max_new_tokens is None:
            options["max_new_tokens"] = NEW_TOKENS
        if max_new_tokens is not None:
            options["max_new_tokens"] = max_new_tokens
        results = self.model.results(batch, stats=self.statistics, **options)
        return [best.text for best, *_ in results]


def bench(
    models: Mapping[str, Path],
    texts: Sequence[str],
    *,
    batches: Sequence[int] = BATCHES,
    threads: Sequence[int] = (1,),
    modes: Sequence[str] | None = None,
    repeats: int = 3,
    seconds: float = 20.0,
    max_new_tokens: int | None = None,
    backend: str | None = None,
    dtype: str | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time models on the same texts.

    Args:
        models: Model folders by name.
        texts: Sources of a translation model, or prompts of a language model.
        batches: Batch sizes.
        threads: Numbers of CPU threads.
        modes: Decoding modes; by default all that a model supports.
        repeats: Timed passes over the texts.
        seconds: Time limit of a pass; beyond it fewer texts are decoded.
        max_new_tokens: Most new tokens of each text; 64 by default for a language model.
        backend: As in `outrider.load`.
        dtype: As in `outrider.load`.
        report: Called with a description of each measurement.
    """
    rows = []
    for count in threads:
        loaded = {
            name: load(folder, threads=count, backend=backend, dtype=dtype)
            for name, folder in models.items()
        }
        for size in batches:
            entries = [
                _Entry(name, model, mode, count)
                for name, model in loaded.items()
                for mode in _modes(name, model, modes)
            ]
            report(f"batch {size}, {count} thread{'s' if count > 1 else ''}")
            done = _measure(entries, texts, size, repeats, seconds, max_new_tokens)
            rows += [_row(entry, entries, size, done) for entry in entries]
    return {"repeats": repeats, "rows": rows, "peak_rss_mib": round(peak_bytes() / 2**20, 1)}


def choose_lines(path: Path, most: int) -> list[str]:
    """Read at most `most` lines of a text, evenly spread, without empty and long ones."""
    fit = [line for line in text_lines(path) if line.strip() and len(line) <= LONGEST]
    if not fit:
        raise DataError(f"{path}: holds no line of 1 to {LONGEST} characters")
    return fit if len(fit) <= most else [fit[at * len(fit) // most] for at in range(most)]


def _modes(name: str, model: Translator | Generator, modes: Sequence[str] | None) -> list[str]:
    """Return the modes to measure; an unsupported one of `modes` is an error."""
    supported = []
    for mode in modes or MODES:
        try:
            check_mode(model.backend, decode_settings(model.defaults, {"mode": mode}))
        except ModelError as error:
            if modes:
                raise ModelError(f"{name}: {error}") from error
        else:
            supported.append(mode)
    return supported


def _measure(
    entries: Sequence[_Entry],
    texts: Sequence[str],
    size: int,
    repeats: int,
    seconds: float,
    max_new_tokens: int | None,
) -> int:
    """Time all entries in turns; return the number of texts decoded."""
    ordered = sorted(texts, key=len)
    batches = [ordered[at : at + size] for at in range(0, len(ordered), size)]
    random.Random(0).shuffle(batches)
    kept = len(batches)
    for entry in entries:
        entry.decode(batches[0], max_new_tokens)  # warm-up
        began = time.perf_counter()
        for done, batch in enumerate(batches[:kept], 1):
            entry.decode(batch, max_new_tokens)
            if time.perf_counter() - began > seconds:
                kept = done
                break
    for entry in entries:
        entry.statistics = Statistics()
    for repeat in range(repeats):
        shift = repeat % len(entries)
        for entry in [*entries[shift:], *entries[:shift]]:
            began = time.perf_counter()
            decoded = [entry.decode(batch, max_new_tokens) for batch in batches[:kept]]
            entry.seconds.append(time.perf_counter() - began)
            entry.texts.append([text for batch in decoded for text in batch])
    return sum(map(len, batches[:kept]))


def _row(entry: _Entry, entries: Sequence[_Entry], size: int, done: int) -> dict[str, Any]:
    greedy = next((e for e in entries if (e.name, e.mode) == (entry.name, "ar")), None)
    drafted = entry.mode == "tandem" and entry.statistics.rounds > 0
    return {
        "model": entry.name,
        "engine": _engine(entry.model.backend),
        "mode": entry.mode,
        "batch": size,
        "threads": entry.threads,
        "sentences": done,
        "sentences_per_second": round(done / median(entry.seconds), 3),
        "times_ar": _times(greedy, entry),
        "tokens_per_round": round(entry.statistics.tokens_per_round, 3) if drafted else None,
        "identical_to_own_greedy": _identical(entry, greedy),
    }


def _engine(backend: Any) -> str:
    if isinstance(backend, NativeBackend):
        return f"native-{backend.dtype}"
    return f"torch-{str(backend.model.dtype).removeprefix('torch.')}"


def _times(greedy: _Entry | None, entry: _Entry) -> float | None:
    """Return the speed relative to greedy decoding, the median over repeats."""
    if greedy is None or greedy is entry:
        return None
    pairs = zip(greedy.seconds, entry.seconds, strict=True)
    return round(median(plain / own for plain, own in pairs), 3)


def _identical(entry: _Entry, greedy: _Entry | None) -> float | None:
    """Return the share of texts equal to those of greedy decoding in every repeat."""
    if greedy is None or greedy is entry:
        return None
    expected = greedy.texts[0]
    same = [all(run[at] == text for run in entry.texts) for at, text in enumerate(expected)]
    return round(sum(same) / len(same), 4)
