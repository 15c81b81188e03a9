"""Which of several texts the model finds likeliest, in one pass over all of them.

score(y) = mean_t log p(y_t | y_<t, x)          the end token counts
"""

import torch

from outrider.decoding.protocol import Backend, State
from outrider.decoding.request import Hypothesis

__all__ = ["rescore"]


def rescore(
    backend: Backend, state: State, found: list[list[Hypothesis]]
) -> list[list[Hypothesis]]:
    """Give every text its score and sort those of a row, best first; rows have equally many.

    Nothing has been fed to the rows of `state` yet; it may have fanned out to all texts already.
    """
    candidates = len(found[0])
    if candidates > 1 and len(state.length_B) == len(found):
        state = state.fan(candidates)
    scores = iter(_scores(backend, state, [one for row in found for one in row]))
    rated = [[Hypothesis(one.tokens, one.finish, next(scores)) for one in row] for row in found]
    return [sorted(row, key=_score, reverse=True) for row in rated]


def _scores(backend: Backend, state: State, texts: list[Hypothesis]) -> list[float]:
    device = state.length_B.device
    said = [[*text.tokens, *[backend.eos] * (text.finish == "eos")] for text in texts]
    longest = max(1, *map(len, said))
    padded = [[*tokens, *[backend.pad] * (longest - len(tokens))] for tokens in said]
    said_BT1 = torch.tensor(padded, device=device)[..., None]
    length_B = torch.tensor([len(tokens) for tokens in said], device=device)
    fed_BT = said_BT1[..., 0].roll(1, dims=1)
    fed_BT[:, 0] = backend.start

    logits_BTV = backend.extend(fed_BT, state, count_B=length_B.clamp(min=1))
    score_BT = logits_BTV.gather(-1, said_BT1)[..., 0]
    if len(backend.ends) > 1:  # whichever of them ended the text, it is the end of it
        end_BT = logits_BTV[..., list(backend.ends)].logsumexp(-1)
        score_BT = torch.where(said_BT1[..., 0] == backend.eos, end_BT, score_BT)
    log_prob_BT = score_BT - logits_BTV.logsumexp(-1)
    outside_BT = torch.arange(longest, device=device) >= length_B[:, None]
    total_B = log_prob_BT.masked_fill(outside_BT, 0.0).sum(1, dtype=torch.float64)
    means: list[float] = (total_B / length_B.clamp(min=1)).tolist()
    return means


def _score(text: Hypothesis) -> float:
    assert text.score is not None
    return text.score
