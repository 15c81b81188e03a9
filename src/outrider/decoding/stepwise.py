"""The loop that greedy decoding and sampling share: choose one token a row, feed it, repeat.

Rows that have finished leave the batch, so that little is computed for nothing. Leaving moves the
memory of all the others, which costs more than carrying a few along: they go together.
"""

from collections.abc import Callable, Collection, Sequence

from torch import Tensor

from outrider.decoding.config import DecodeConfig
from outrider.decoding.ids import to_ids
from outrider.decoding.likeliest import Shortcut
from outrider.decoding.mask import TokenMask
from outrider.decoding.prefill import feed_prompts, open_rows
from outrider.decoding.protocol import Backend
from outrider.decoding.request import Hypothesis, Request, token_limit, up_to_end
from outrider.decoding.statistics import Round

__all__ = ["CARRIED", "Choose", "decode_stepwise", "finish"]

CARRIED = 0.25
"""Share of finished rows in a batch that is carried along before they leave it."""

Choose = Callable[[Tensor, Sequence[int], int], Tensor]
"""(logits_B1V, rows, step) -> next_B1; `rows` says which requests they are."""


def decode_stepwise(
    backend: Backend,
    requests: Sequence[Request],
    config: DecodeConfig,
    choose: Choose,
    *,
    past_logits: Shortcut | None = None,
) -> list[Hypothesis]:
    """Decode all requests together; the results are in the order of the requests.

    `past_logits` does in one call what `choose` does with logits.
    """
    if not requests:
        return []
    ends = frozenset(backend.ends)
    limits = [token_limit(backend, request, config) for request in requests]
    tokens: list[list[int]] = [[] for _ in requests]
    log_probs: list[list[float]] = [[] for _ in requests]

    mask = TokenMask(config, ends=backend.ends)
    rows, nearest_limit, step = list(range(len(requests))), min(limits), 0

    def pick(logits_B1V: Tensor) -> list[int]:
        normaliser_B1 = logits_B1V.logsumexp(-1) if config.scores else None
        mask(logits_B1V, step)
        next_B1 = choose(logits_B1V, rows, step)
        if normaliser_B1 is not None:
            chosen_B1 = logits_B1V.gather(-1, next_B1[..., None])[..., 0] - normaliser_B1
            for row, log_prob in zip(rows, chosen_B1.flatten().tolist(), strict=True):
                log_probs[row].append(log_prob)
        return [token for (token,) in next_B1.tolist()]

    def feed(ids: list[int]) -> list[int]:
        fed = [[token] for token in ids]
        if past_logits is None:
            return pick(backend.extend(to_ids(fed, state.length_B.device), state))
        best = past_logits.backend.likeliest(fed, state, past_logits.forbidden)
        return [token for (token,) in best]

    state = open_rows(backend, requests, limits)
    if past_logits is None or any(request.prompt for request in requests):
        ids = pick(feed_prompts(backend, state, requests))
    else:
        ids = feed([backend.start] * len(requests))
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
                state.select(to_ids(open_, state.length_B.device))
                rows, ids = [rows[n] for n in open_], [ids[n] for n in open_]
                nearest_limit = min(limits[row] for row in rows)
        ids = feed(ids)

    finished = zip(tokens, log_probs, limits, strict=True)
    return [finish(*row, ends=ends, config=config) for row in finished]


def finish(
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
