"""Which of several texts the model finds likeliest, in one pass over all of them.

score(y) = mean_t log p(y_t | y_<t, x)          the end token counts
"""

import math

from outrider.decoding.protocol import Backend, State
from outrider.decoding.questions import LogProbs
from outrider.decoding.request import Hypothesis

__all__ = ["rescore"]


def rescore(
    backend: Backend, state: State, found: list[list[Hypothesis]]
) -> list[list[Hypothesis]]:
    """Give every text its score and sort those of a row, best first; rows have equally many.

    Nothing has been fed to `state` yet; its rows may have been repeated for all texts already.
    """
    candidates = len(found[0])
    if candidates > 1 and len(state.lengths) == len(found):
        state = state.repeat_rows(candidates)
    scores = iter(_scores(backend, state, [one for row in found for one in row]))
    rated = [[Hypothesis(one.tokens, one.finish, next(scores)) for one in row] for row in found]
    return [sorted(row, key=_score, reverse=True) for row in rated]


def _scores(backend: Backend, state: State, texts: list[Hypothesis]) -> list[float]:
    said = [[*text.tokens, *[backend.eos] * (text.finish == "eos")] for text in texts]
    fed = [[backend.start, *tokens][: max(1, len(tokens))] for tokens in said]
    longest = max(map(len, fed))
    padded = [[*tokens, *[backend.pad] * (longest - len(tokens))] for tokens in said]
    found = backend.extend(fed, state, LogProbs(padded, backend.ends))
    return [
        math.fsum(row[: len(tokens)]) / max(1, len(tokens))
        for row, tokens in zip(found, said, strict=True)
    ]


def _score(text: Hypothesis) -> float:
    assert text.score is not None
    return text.score
