"""Quality and speed of every decoding mode of one model, on one test set and machine.

Quality is measured on all lines. Speed is measured on a sample, from token ids to token ids: all
modes decode each batch in turn, so that other load affects all, and a mode is compared with greedy
in the same repeat. An exact mode gets no speed if any token differed in the timed runs.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from outrider.decoding import Backend, DecodeConfig, Request, decode
from outrider.decoding.statistics import Statistics
from outrider.evaluation.metrics import score_translations
from outrider.runtime import Translator
from outrider.runtime.options import decode_settings
from outrider.show.tandem_trace import DRAFT_TOKENS
from outrider_lab.bench.modes.repetition import length_ratio, repetition_rate

GAMMAS = (0.0, 0.25, 0.5, 0.75, 1.0)
_WINDOW = 512
"""Lines translated between two progress reports."""

Family = Literal["ar", "tandem", "ctc", "drafter"]


@dataclass(frozen=True)
class DecodeMode:
    """A mode with its settings: a point of the picture."""

    family: Family
    label: str
    """Its name within its family."""
    options: dict[str, Any] = field(default_factory=dict)
    """Values of `DecodeConfig`."""
    exact: bool = False
    """Whether it guarantees the tokens of greedy decoding."""

    @property
    def name(self) -> str:
        """Its name in a table."""
        return self.label if self.family == "ar" else f"{_FAMILIES[self.family]} {self.label}"


_FAMILIES: dict[Family, str] = {
    "ar": "ar",
    "tandem": "tandem",
    "ctc": "ctc",
    "drafter": "mask-predict",
}


def decode_modes(backend: Backend) -> list[DecodeMode]:
    """List the modes of this model, greedy first."""
    modes = [DecodeMode("ar", "greedy", exact=True)]
    if backend.drafts is not None:
        tandem = {"mode": "tandem"}
        modes += [
            DecodeMode("tandem", f"γ {gamma:g}", {**tandem, "gamma": gamma}, exact=gamma == 0)
            for gamma in GAMMAS
        ]
    if backend.slots is not None:
        ctc = {"mode": "parallel", "decoder": "ctc"}
        modes += [DecodeMode("ctc", _passes(n), {**ctc, "iterations": n}) for n in (0, 1, 2, 4)]
        modes.append(DecodeMode("ctc", "best of 4", {**ctc, "candidates": 4}))
    if backend.drafts is not None:
        masked = {"mode": "parallel", "decoder": "drafter"}
        modes += [DecodeMode("drafter", _passes(n), {**masked, "iterations": n}) for n in (0, 2, 4)]
    return modes


def _passes(iterations: int) -> str:
    return f"{1 + iterations} passes" if iterations else "1 pass"


def measure_modes(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    batches: Sequence[int] = (1, 8, 32),
    sentences: int = 128,
    repeats: int = 5,
    tokenize: str = "auto",
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure quality and speed of every mode.

    Args:
        translator: The model.
        sources: Lines to translate.
        references: Their reference translations.
        batches: Batch sizes of the speed measurement.
        sentences: Lines of the speed measurement, evenly spaced over the sources.
        repeats: Timed runs of each mode after a warm-up; the median counts.
        tokenize: SacreBLEU's tokenizer; `auto` takes that of the references' script.
        report: Called with a line on every step.
    """
    modes = decode_modes(translator.backend)
    rows = _measure_quality(translator, modes, sources, references, tokenize, report)
    sample = _sample(translator, sources, sentences)
    for batch in batches:
        timed = _measure_speed(translator, modes, _chunks(sample, batch), repeats, report)
        for row, speed in zip(rows, timed, strict=True):
            row["speed"].append({"batch": batch, **speed})
    return {"task": "modes", "lines": len(sources), "timed": len(sample), "modes": rows}


def _measure_quality(
    translator: Translator,
    modes: Sequence[DecodeMode],
    sources: Sequence[str],
    references: Sequence[str],
    tokenize: str,
    report: Callable[[str], None],
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    greedy: list[tuple[int, ...]] = []
    for number, mode in enumerate(modes, start=1):
        place = f"quality of {mode.name}, mode {number} of {len(modes)}"
        texts, tokens, stats = _translate(translator, mode, sources, place, report)
        greedy = greedy or tokens
        score = score_translations(texts, references, tokenize=tokenize)
        same = sum(a == b for a, b in zip(tokens, greedy, strict=True))
        rows.append(
            {
                "name": mode.name,
                "family": mode.family,
                "label": mode.label,
                "options": mode.options,
                "exact": mode.exact,
                "bleu": score.bleu,
                "chrf": score.chrf,
                "bleu_signature": score.bleu_signature,
                "identical_share": same / len(sources),
                "repetition_rate": repetition_rate(texts),
                "length_ratio": length_ratio(texts, references),
                "tokens_per_round": stats.tokens_per_round,
                "acceptance_by_position": stats.acceptance_by_position,
                "speed": [],
            }
        )
    return rows


def _translate(
    translator: Translator,
    mode: DecodeMode,
    sources: Sequence[str],
    place: str,
    report: Callable[[str], None],
) -> tuple[list[str], list[tuple[int, ...]], Statistics]:
    """Translate all lines, with drafts of a fixed length so that acceptance is comparable."""
    options = dict(mode.options)
    drafts = translator.backend.drafts
    if mode.family == "tandem" and drafts is not None:
        options["draft_tokens"] = min(DRAFT_TOKENS, drafts.longest)
    texts, tokens, stats = [], [], Statistics()
    for start in range(0, len(sources), _WINDOW):
        report(f"{place}: {start} of {len(sources)} lines")
        window = sources[start : start + _WINDOW]
        for best, *_ in translator.results(window, split=False, stats=stats, **options):
            texts.append(best.text)
            tokens.append(best.tokens)
    return texts, tokens, stats


def _sample(translator: Translator, sources: Sequence[str], sentences: int) -> list[Request]:
    """Take lines evenly from the test set, without those of several pieces, shortest first."""
    config = decode_settings(translator.defaults, {})
    pieces = translator.requests(sources, config, split=False)
    whole = [requests[0] for requests in pieces if len(requests) == 1]
    step = max(1, len(whole) // sentences)
    return sorted(whole[::step][:sentences], key=lambda request: len(request.source))


def _chunks(sample: list[Request], size: int) -> list[list[Request]]:
    """Split the sample into full batches of similar lengths, repeating it if it is too small."""
    enough = sample * -(-size // max(1, len(sample)))
    whole = len(enough) - len(enough) % size
    return [enough[start : start + size] for start in range(0, whole, size)]


@dataclass
class _Timing:
    """The timed runs of one mode."""

    config: DecodeConfig
    seconds: list[float] = field(default_factory=list)
    """Of each repeat."""
    stats: Statistics = field(default_factory=Statistics)
    """Of the last repeat."""
    identical: bool = True


def _measure_speed(
    translator: Translator,
    modes: Sequence[DecodeMode],
    chunks: Sequence[Sequence[Request]],
    repeats: int,
    report: Callable[[str], None],
) -> list[dict[str, Any]]:
    size = len(chunks[0])
    timings = [_Timing(decode_settings(translator.defaults, mode.options)) for mode in modes]
    for repeat in range(repeats + 1):
        for timing in timings:
            timing.seconds.append(0.0)
            timing.stats = Statistics()
        for number, chunk in enumerate(chunks):
            place = f"{number} of {len(chunks)} batches"
            report(f"speed at batch {size}: repeat {repeat} of {repeats}, {place}")
            _take_turns(translator, timings, chunk, first=number + repeat)
    for timing in timings:
        del timing.seconds[0]  # the warm-up
    sentences = size * len(chunks)
    greedy = timings[0].seconds
    pairs = zip(modes, timings, strict=True)
    return [_speed(mode, timing, greedy, sentences) for mode, timing in pairs]


def _take_turns(
    translator: Translator, timings: Sequence[_Timing], chunk: Sequence[Request], *, first: int
) -> None:
    """Decode one batch in every mode; the first mode rotates."""
    tokens: list[list[tuple[int, ...]]] = [[] for _ in timings]
    for turn in range(len(timings)):
        place = (first + turn) % len(timings)
        timing = timings[place]
        start = time.perf_counter()
        outputs = decode(
            translator.backend,
            chunk,
            timing.config,
            controllers=translator.controllers,
            stats=timing.stats,
        )
        timing.seconds[-1] += time.perf_counter() - start
        tokens[place] = [best.tokens for best, *_ in outputs]
    for timing, mode_tokens in zip(timings, tokens, strict=True):
        timing.identical &= mode_tokens == tokens[0]


def _speed(
    mode: DecodeMode, timing: _Timing, greedy: list[float], sentences: int
) -> dict[str, Any]:
    ratios = [base / own for own, base in zip(timing.seconds, greedy, strict=True)]
    valid = timing.identical or not mode.exact
    return {
        "sentences_per_second": sentences / median(timing.seconds) if valid else None,
        "ratio_to_greedy": median(ratios) if valid else None,
        "ratio_range": [min(ratios), max(ratios)] if valid else None,
        "identical": timing.identical,
        "statistics": timing.stats.as_dict(),
    }
