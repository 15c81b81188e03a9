"""Is tandem exact? Every line decoded twice, token by token and in tandem, and compared by tokens.

In float32 all lines must be equal. In low precision a block and a single token round differently,
and near-ties may fall the other way; `strict` computes those again.
"""

from collections.abc import Callable, Sequence
from typing import Any

from outrider.decoding.statistics import Statistics
from outrider.runtime import Generator, Result, Translator

__all__ = ["DRAFT_TOKENS", "compare_with_greedy"]

DRAFT_TOKENS = 8
"""Length of the drafts where a fixed one is wanted and none is named."""

SHOWN = 10
"""Lines that differ and are listed."""

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
    """Count the lines that come out the same, and list the first that do not.

    Args:
        loaded: A model with a drafter.
        lines: Sources to translate, or prompts to continue.
        batch: Lines decoded together; with `strict` greedy decodes every line alone, because that
            is what strict promises to equal.
        draft_tokens: Length of the drafts; by default 8, or the longest the drafter can.
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
        found = _decode(loaded, chunk, alone=batch == 1, stats=stats, options=tandem)
        wanted = _decode(loaded, chunk, alone=batch == 1 or strict, stats=None, options=common)
        for row, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            tokens += len(theirs.tokens)
            if ours.tokens == theirs.tokens and ours.finish == theirs.finish:
                identical += 1
            elif len(differing) < SHOWN:
                differing.append(_difference(start + row, chunk[row], ours, theirs))
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
    # A budget of one token gives every piece a batch of its own.
    together: dict[str, Any] = {"batch_tokens": 1 if alone else 1 << 40}
    if isinstance(loaded, Translator):
        together["split"] = False  # a line is a row
    return [best for best, *_ in loaded.results(chunk, stats=stats, **together, **options)]


def _difference(line: int, source: str, ours: Result, theirs: Result) -> dict[str, Any]:
    pairs = zip(ours.tokens, theirs.tokens, strict=False)
    shorter = min(len(ours.tokens), len(theirs.tokens))
    first = next((n for n, (a, b) in enumerate(pairs) if a != b), shorter)
    return {
        "line": line + 1,
        "source": source,
        "greedy": theirs.text,
        "tandem": ours.text,
        "first_differing_token": first,
    }
