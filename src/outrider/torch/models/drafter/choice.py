"""Selection of the tokens of a drafted block, each conditioned on those before it.

    s_i = tanh(a_i + P e(y_{i-1}) + R s_{i-1})        a_i the input of the slot
    z_i = b_i + o_i s_i                               o_i a row per candidate, C candidates
    y_i = argmax z_i,   or drawn from softmax(z_i / temperature),   or the known token of slot i

The slots are sequential and cheap, so the overhead of torch calls dominates. For few rows on a CPU
the same steps run in numpy, which has less overhead.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from outrider.inverse_cdf import invert, masses

FEW_ROWS = 32
"""Rows up to which numpy is faster: 2.7 times for one row, 1.6 times for this number."""


class Candidates(NamedTuple):
    """The candidate tokens of each slot."""

    ids_BKC: Tensor
    score_BKC: Tensor
    """b, float32."""


class Steps(NamedTuple):
    """Inputs and weights of the state along the slots."""

    inner_BKR: Tensor
    """a."""
    extra_BKCR: Tensor
    """o, float32."""
    token_VR: Tensor
    """P e(y) of every token."""
    state_RR: Tensor
    """R, transposed."""


class Choice(NamedTuple):
    """Sampling options of the slots."""

    temperature: float = 1.0
    uniform_BK: Tensor | None = None
    """Uniform random numbers in [0, 1); None for argmax."""
    known_BK: Tensor | None = None
    """Known tokens of slots, -1 where unknown."""


class Chosen(NamedTuple):
    """The selected tokens, with scores and states."""

    tokens_BK: Tensor
    score_BKC: Tensor
    """z."""
    state_BKR: Tensor
    """s."""


def choose_all(candidates: Candidates, choice: Choice) -> Tensor:
    """Select for all slots at once, independently: [B, K]."""
    score_BKC, uniform_BK = candidates.score_BKC, choice.uniform_BK
    if uniform_BK is None:
        pick_BK1 = score_BKC.argmax(-1, keepdim=True)
    else:
        mass_BKC = masses(score_BKC, choice.temperature)
        pick_BK1 = invert(mass_BKC, uniform_BK[..., None].to(mass_BKC))
    token_BK = candidates.ids_BKC.gather(-1, pick_BK1)[..., 0]
    known_BK = choice.known_BK
    return token_BK if known_BK is None else torch.where(known_BK >= 0, known_BK, token_BK)


def choose_in_order(candidates: Candidates, steps: Steps, last_B: Tensor, choice: Choice) -> Chosen:
    """Select slot by slot; `last_B` is the token before the first."""
    if len(last_B) <= FEW_ROWS and _for_numpy(steps.inner_BKR):
        return _in_numpy(candidates, steps, last_B, choice)
    return _in_torch(candidates, steps, last_B, choice)


def _in_torch(candidates: Candidates, steps: Steps, last_B: Tensor, choice: Choice) -> Chosen:
    token_B, tokens, scores = last_B, [], []
    states: list[Tensor] = []
    parts = zip(*(part.unbind(1) for part in (*candidates, *steps[:2])), strict=True)
    for i, (ids_BC, score_BC, inner_BR, extra_BCR) in enumerate(parts):
        state_BR = inner_BR + steps.token_VR[token_B]
        if states:
            state_BR = torch.addmm(state_BR, states[-1], steps.state_RR)
        states.append(state_BR.tanh())
        scores.append(score_BC + (extra_BCR @ states[-1].float()[..., None])[..., 0])
        slot = Candidates(ids_BC[:, None], scores[-1][:, None])
        known_B1, uniform_B1 = (
            None if each is None else each[:, i : i + 1]
            for each in (choice.known_BK, choice.uniform_BK)
        )
        token_B = choose_all(slot, Choice(choice.temperature, uniform_B1, known_B1))[:, 0]
        tokens.append(token_B)
    return Chosen(*(torch.stack(each, dim=1) for each in (tokens, scores, states)))


def _in_numpy(candidates: Candidates, steps: Steps, last_B: Tensor, choice: Choice) -> Chosen:
    ids, score, inner, extra, token_table, state_table = (
        part.numpy() for part in (*candidates, *steps)
    )
    known, uniform = (
        None if each is None else each.numpy() for each in (choice.known_BK, choice.uniform_BK)
    )
    rows = np.arange(len(inner))
    token, state = last_B.numpy(), np.empty_like(inner)
    tokens, score = np.empty(ids.shape[:2], dtype=np.int64), score.copy()
    for i in range(ids.shape[1]):
        sum_BR = inner[:, i] + token_table[token]
        if i:
            sum_BR += state[:, i - 1] @ state_table
        state[:, i] = np.tanh(sum_BR)
        score[:, i] += (extra[:, i] @ state[:, i, :, None].astype(np.float32))[..., 0]
        if uniform is None:
            pick = score[:, i].argmax(-1)
        else:
            pick = invert(masses(score[:, i], choice.temperature), uniform[:, i : i + 1])[:, 0]
        token = ids[rows, i, pick]
        if known is not None:
            token = np.where(known[:, i] >= 0, known[:, i], token)
        tokens[:, i] = token
    return Chosen(*(torch.from_numpy(each) for each in (tokens, score, state)))


def _for_numpy(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)
