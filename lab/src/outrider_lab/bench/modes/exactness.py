"""Compares tandem decoding with greedy decoding, line by line and token by token.

In float32 all lines must be equal. In low precision blocks and single tokens round differently, so
near-ties may differ; `strict` computes those again.
"""

from collections.abc import Callable, Sequence
from typing import Any

from outrider.decoding.statistics import Statistics
from outrider.runtime import Generator, Result, Translator
from outrider.show.tandem_trace import DRAFT_TOKENS

SHOWN = 10
"""Maximum number of listed differing lines."""

Loaded = Translator | Generator


def compare_with_greedy(
    loaded: Loaded,
    lines: Sequence[str],
    *,
    batch: int = 1,
    draft_tokens: int | None = None,
    strict: bool = False,
    max_new_tokens: int | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Count the identical lines and list the first differing ones.

    Args:
        loaded: A model with a drafter.
        lines: Sources to translate, or prompts to continue.
        batch: Lines decoded together; with `strict` greedy decodes every line alone, because
            `strict` guarantees that text.
        draft_tokens: Length of the drafts; by default 8, or the drafter's maximum if that is less.
        strict: Compute near-ties again.
        max_new_tokens: As in `DecodeConfig`.
        advance: Called with the number of lines just done, for a progress bar.
    """
    stats, identical, tokens = Statistics(), 0, 0
    differing: list[dict[str, Any]] = []
    common = {"max_new_tokens": max_new_tokens}
    drafts = draft_tokens
    if drafts is None and loaded.backend.drafts is not None:
        drafts = min(DRAFT_TOKENS, loaded.backend.drafts.longest)
    tandem = {**common, "mode": "tandem", "draft_tokens": drafts, "strict": strict}
    for start in range(0, len(lines), batch):
        chunk = lines[start : start + batch]
        drafted = _decode(loaded, chunk, alone=batch == 1, stats=stats, options=tandem)
        greedy = _decode(loaded, chunk, alone=batch == 1 or strict, stats=None, options=common)
        for row, (ours, expected) in enumerate(zip(drafted, greedy, strict=True)):
            tokens += len(expected.tokens)
            if ours.tokens == expected.tokens and ours.finish == expected.finish:
                identical += 1
            elif len(differing) < SHOWN:
                differing.append(_difference(start + row, chunk[row], ours, expected))
        advance(len(chunk))
    return {
        "lines": len(lines),
        "identical": identical,
        "identical_share": identical / len(lines) if lines else 1.0,
        "tokens": tokens,
        "settings": {"batch": batch, "draft_tokens": drafts, "strict": strict, **common},
        "statistics": stats.as_dict(),
        "differing": differing,
    }


def _decode(
    loaded: Loaded,
    chunk: Sequence[str],
    *,
    alone: bool,
    stats: Statistics | None,
    options: dict[str, Any],
) -> list[Result]:
    # With a budget of one token every request is decoded alone.
    together: dict[str, Any] = {"batch_tokens": 1 if alone else 1 << 40}
    if isinstance(loaded, Translator):
        together["split"] = False  # one row per line
    return [best for best, *_ in loaded.results(chunk, stats=stats, **together, **options)]


def _difference(line: int, source: str, ours: Result, expected: Result) -> dict[str, Any]:
    pairs = zip(ours.tokens, expected.tokens, strict=False)
    shorter = min(len(ours.tokens), len(expected.tokens))
    first = next((n for n, (a, b) in enumerate(pairs) if a != b), shorter)
    return {
        "line": line + 1,
        "source": source,
        "greedy": expected.text,
        "tandem": ours.text,
        "first_differing_token": first,
    }
