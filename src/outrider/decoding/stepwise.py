"""The loop that greedy decoding and sampling share: choose one token a row, feed it, repeat.

Rows that have finished leave the batch, so that little is computed for nothing. Leaving moves the
memory of all the others, which costs more than carrying a few along: they go together.
"""

from collections.abc import Callable, Collection, Sequence

from outrider.decoding.config import DecodeConfig
from outrider.decoding.prefill import feed_prompts, open_rows
from outrider.decoding.protocol import Backend
from outrider.decoding.questions import Chosen, Question
from outrider.decoding.request import Hypothesis, Request, token_limit, up_to_end
from outrider.decoding.statistics import Round

__all__ = ["CARRIED", "Ask", "decode_stepwise", "to_hypothesis"]

CARRIED = 0.25
"""Share of finished rows in a batch that is carried along before they leave it."""

Ask = Callable[[Sequence[int], int], Question[Chosen]]
"""(rows, step) -> how their next token is chosen; `rows` says which requests they are."""
Settle = Callable[[Sequence[int], Chosen], list[int]]
"""(rows, chosen) -> the tokens that stand."""


def decode_stepwise(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeConfig,
    ask: Ask,
    *,
    settle: Settle | None = None,
) -> list[Hypothesis]:
    """Decode all requests together; the results are in the order of the requests."""
    if not requests:
        return []
    ends = frozenset(backend.ends)
    limits = [token_limit(backend, request, config) for request in requests]
    tokens: list[list[int]] = [[] for _ in requests]
    log_probs: list[list[float]] = [[] for _ in requests]
    rows, nearest_limit, step = list(range(len(requests))), min(limits), 0

    def take(chosen: Chosen) -> list[int]:
        for row, scores in zip(rows, chosen.log_probs or (), strict=False):
            log_probs[row] += scores
        if settle is not None:
            return settle(rows, chosen)
        return [token for (token,) in chosen.tokens]

    state = open_rows(backend, requests, limits)
    ids = take(feed_prompts(backend, state, requests, ask(rows, step)))
    ended: set[int] = set()
    # Carried rows keep growing; only where all are equally long is there sure to be room for that.
    carried = CARRIED if len({len(request.prompt) for request in requests}) == 1 else 0.0
    while True:
        for row, token in zip(rows, ids, strict=True):
            tokens[row].append(token)
        step += 1
        if step >= nearest_limit or not ends.isdisjoint(ids):
            pairs = zip(rows, ids, strict=True)
            ended.update(row for row, token in pairs if token in ends or step >= limits[row])
            open_ = [n for n, row in enumerate(rows) if row not in ended]
            if not open_:
                break
            if len(rows) - len(open_) > carried * len(rows):
                state.select(open_)
                rows, ids = [rows[n] for n in open_], [ids[n] for n in open_]
                nearest_limit = min(limits[row] for row in rows)
        ids = take(backend.extend([[token] for token in ids], state, ask(rows, step)))

    finished = zip(tokens, log_probs, limits, strict=True)
    return [to_hypothesis(*row, ends=ends, config=config) for row in finished]


def to_hypothesis(
    tokens: list[int],
    log_probs: list[float],
    limit: int,
    *,
    ends: Collection[int],
    config: DecodeConfig,
    rounds: Sequence[Round] = (),
) -> Hypothesis:
    """Cut off what a row said while it was carried along, and the end token."""
    length = min(limit, up_to_end(tokens, ends))
    tokens, log_probs = tokens[:length], log_probs[:length]
    ended = tokens[-1] in ends
    if not ended and config.force_eos:
        log_probs = log_probs[:-1]  # a forced end token is certain
    score = sum(log_probs) if config.scores else None
    words = tokens[:-1] if ended or config.force_eos else tokens
    return Hypothesis(tuple(words), "eos" if ended else "length", score, tuple(rounds))
