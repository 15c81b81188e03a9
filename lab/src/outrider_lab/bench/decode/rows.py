"""Rows of `bench decode`: speeds, ratios, quality, and whether outputs are identical.

A ratio is computed per repeat, on the batches that both engines decoded; the median over the
repeats cancels varying load.
"""

from collections import defaultdict
from collections.abc import Sequence, Set
from statistics import median
from typing import Any

from outrider.evaluation.metrics import score_translations
from outrider_lab.bench.decode.speed import Measured, Speeds

PEER, GENERATE, REFERENCE = "ctranslate2-int8", "transformers", "outrider-torch"
_STEPS = {"tandem": "verify"}
"""Names of `extend` by mode; otherwise a step."""


def decode_rows(
    speeds: Speeds, references: Sequence[str] | None = None, *, tokenize: str = "auto"
) -> list[dict[str, Any]]:
    """Return a row per engine, mode, number of threads, batch size and order."""
    quality = _Quality(references, tokenize)
    expected = _reference_texts(speeds.measured)
    return [_row(one, speeds.measured, expected, quality) for one in speeds.measured]


def _row(
    one: Measured, everyone: Sequence[Measured], expected: dict[int, str], quality: "_Quality"
) -> dict[str, Any]:
    others = [other for other in everyone if other.setting == one.setting]
    best = _best(one, others)
    calls = sorted(1000.0 * spent for repeat in one.seconds for spent in repeat.values())
    return {
        "engine": one.plan.name,
        "mode": one.mode,
        "dtype": one.plan.dtype,
        "threads": one.plan.threads,
        "best_threads": best is one,
        "batch": one.setting.batch,
        "order": one.setting.order,
        "sentences_per_second": round(_speed(one), 2),
        "tokens_per_second": round(_speed(one) * one.tokens / _sentences(one) / _repeats(one), 1),
        "latency_p50_ms": round(median(calls), 3),
        "latency_p95_ms": round(_percentile(calls, 0.95), 3),
        "ratio_to_ctranslate2_int8": _ratio(one, _find(others, PEER, one.plan.threads)),
        "best_ratio_to_ctranslate2_int8": (
            _ratio(one, _best(_find(others, PEER), others)) if best is one else None
        ),
        "ratio_to_hf_generate": _ratio(one, _find(others, GENERATE, one.plan.threads)),
        **_split(one),
        **quality.score(one),
        "identical_to_own_greedy": _identical_to_own_greedy(one, others),
        "identical_to_reference": None if one.plan.shallow else _share(one, expected),
        "peak_rss_mib": round(one.peak_mib, 1),
        "load_seconds": round(one.load_seconds, 3),
        "sentences": _sentences(one),
        "repeats": _repeats(one),
    }


def _repeats(one: Measured) -> int:
    return len(one.seconds)


def _sentences(one: Measured) -> int:
    return sum(map(len, one.batches.values()))


def _speed(one: Measured) -> float:
    """Return the sentences per second of the median repeat."""
    return _sentences(one) / median(sum(repeat.values()) for repeat in one.seconds)


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _best(one: Measured | None, others: Sequence[Measured]) -> Measured | None:
    """Return the measurement of the same engine and mode at its best number of threads."""
    if one is None:
        return None
    same = [r for r in others if (r.plan.name, r.mode) == (one.plan.name, one.mode)]
    return max(same, key=_speed)


def _find(others: Sequence[Measured], engine: str, threads: int | None = None) -> Measured | None:
    """Return this engine in autoregressive mode; at any number of threads if None."""
    for baseline in others:
        if (baseline.plan.name, baseline.mode) == (engine, "ar") and threads in (
            None,
            baseline.plan.threads,
        ):
            return baseline
    return None


def _ratio(one: Measured, baseline: Measured | None) -> float | None:
    """Return the speed relative to the baseline, on the batches that both decoded."""
    shared = set() if baseline is None else one.batches.keys() & baseline.batches.keys()
    if baseline is None or not shared:
        return None
    ratios = [
        sum(theirs[batch] for batch in shared) / sum(ours[batch] for batch in shared)
        for ours, theirs in zip(one.seconds, baseline.seconds, strict=True)
    ]
    return round(median(ratios), 3)


def _split(one: Measured) -> dict[str, Any]:
    """Return the time by component in milliseconds per sentence; our engines only."""
    seen = one.time_split
    if seen is None:
        return {"ratio_to_bare_engine": None, "time_split_ms": None, "tokens_per_round": None}
    per_sentence = 1000 / seen.sentences
    named: dict[str, float] = defaultdict(float)
    for name, spent in sorted(seen.core.items()):
        named[_component(name, one.mode)] += spent
    if (both := named.pop("draft_and_verify", None)) is not None:
        drafting = seen.statistics["seconds"]["draft"]
        named["draft"] += drafting
        named["verify"] += both - drafting
    loop = seen.wall - seen.text - sum(seen.core.values())
    split = {**named, "loop": loop, "text": seen.text}
    drafted = one.mode == "tandem" and seen.statistics["rounds"] > 0
    return {
        "ratio_to_bare_engine": round(seen.ratio_to_bare_engine, 3),
        "time_split_ms": {name: round(per_sentence * spent, 4) for name, spent in split.items()},
        "tokens_per_round": round(seen.statistics["tokens_per_round"], 3) if drafted else None,
    }


def _component(method: str, mode: str) -> str:
    """Name the component of a backend method in a result."""
    if method == "extend":
        return _STEPS.get(mode, "step")
    return {"greedy": "step", "fill": "ctc"}.get(method, method)


def _identical_to_own_greedy(one: Measured, others: Sequence[Measured]) -> float | None:
    """Return the share of texts equal to the engine's own greedy output; None for greedy."""
    if one.mode == "ar":
        return None
    greedy = next((r for r in others if r.plan == one.plan and r.mode == "ar"), None)
    return None if greedy is None else _share(one, greedy.texts, greedy.unstable)


def _reference_texts(everyone: Sequence[Measured]) -> dict[int, str]:
    """Return the greedy texts of PyTorch in float32, from any batches."""
    texts: dict[int, str] = {}
    for one in everyone:
        if (one.plan.name, one.mode) == (REFERENCE, "ar"):
            texts = one.texts | texts
    return texts


def _share(one: Measured, texts: dict[int, str], unstable: Set[int] = frozenset()) -> float | None:
    """Return the share of common sentences with equal translations in every repeat."""
    both = one.texts.keys() & texts.keys()
    if not both:
        return None
    changed = one.unstable | unstable
    return round(sum(one.texts[n] == texts[n] and n not in changed for n in both) / len(both), 4)


class _Quality:
    """BLEU and chrF; equal outputs are scored once."""

    def __init__(self, references: Sequence[str] | None, tokenize: str) -> None:
        self.references = references
        self.tokenize = tokenize
        self.scores: dict[tuple[str, ...], dict[str, float]] = {}

    def score(self, one: Measured) -> dict[str, float | None]:
        """Score one row; None without references, or with incomplete texts."""
        if self.references is None or len(one.texts) < len(self.references):
            return {"bleu": None, "chrf": None}
        texts = tuple(one.texts[number] for number in range(len(self.references)))
        if texts not in self.scores:
            score = score_translations(texts, self.references, tokenize=self.tokenize)
            self.scores[texts] = {"bleu": round(score.bleu, 3), "chrf": round(score.chrf, 3)}
        return dict(self.scores[texts])
