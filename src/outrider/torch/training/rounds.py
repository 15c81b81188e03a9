"""How far a drafter's blocks would hold: tokens per round, without decoding anything.

A round at position a drafts the tokens a .. a + k - 1. Those up to the first wrong one stand, and
the target adds one of its own, so the next round begins at

    a' = a + (longest right prefix) + 1

Along a right prefix the drafted tokens are the labels themselves, so the state that runs along the
draft can be fed the labels: one pass over all rows gives a whole round of tandem decoding.
"""

import torch
from torch import Tensor

from outrider.torch.models import Drafter
from outrider.torch.models.drafter import Slots
from outrider.torch.training.objectives.base import IGNORED, Inputs
from outrider.torch.training.objectives.drafter import run_target, tokens_at

__all__ = ["count_rounds"]


@torch.inference_mode()
def count_rounds(drafter: Drafter, inputs: Inputs) -> tuple[int, int]:
    """Tokens of the batch, end tokens counted, and rounds of blocks of `train_block` they take."""
    target = run_target(drafter, inputs)
    fed_BT, label_BT = target.fed_BT, target.label_BT
    count_B1 = (label_BT != IGNORED).sum(1, keepdim=True)
    index_K = torch.arange(drafter.config.train_block, device=label_BT.device)
    anchor_B1, rounds = torch.zeros_like(count_B1), 0
    while bool((open_B1 := anchor_B1 < count_B1).any()):
        slots = Slots(
            anchor_B1.expand(-1, len(index_K)),
            index_K,
            torch.zeros_like(index_K),
            (index_K == 0).expand(len(label_BT), -1),
        )
        hidden_BKD = drafter.train_blocks(target.seen, fed_BT, slots, *target.source)
        guess_BK = _guess(drafter, hidden_BKD, tokens_at(fed_BT, slots, 0))
        right_BK = guess_BK == tokens_at(label_BT, slots, IGNORED)
        prefix_B1 = right_BK.long().cumprod(1).sum(1, keepdim=True)
        rounds += int(open_B1.sum())
        anchor_B1 = torch.where(open_B1, anchor_B1 + prefix_B1 + 1, anchor_B1)
    return int(count_B1.sum()), rounds


def _guess(drafter: Drafter, hidden_BKD: Tensor, before_BK: Tensor) -> Tensor:
    """What every slot would draft if all before it were right."""
    slots_BKV = drafter.logits(hidden_BKD)
    if not drafter.config.rank:
        return _words(drafter, slots_BKV.argmax(-1))
    place_BKC = slots_BKV.topk(min(drafter.config.candidates, slots_BKV.shape[-1])).indices
    state_BKR = drafter.run_state(hidden_BKD, before_BK)
    score_BKC = drafter.logits(hidden_BKD, state_BKR).gather(-1, place_BKC)
    return _words(drafter, place_BKC.gather(-1, score_BKC.argmax(-1, keepdim=True))[..., 0])


def _words(drafter: Drafter, place_BK: Tensor) -> Tensor:
    return place_BK if drafter.kept_V is None else drafter.kept_V[place_BK]
