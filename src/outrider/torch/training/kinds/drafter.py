"""Drafters: predict the next tokens at once, from random positions of the target's own text.

    loss = sum_blocks sum_i decay^i (-log q_i(y_{a+i} | y_<=a, x, y_{a..a+i-1}))  /  sum of weights

With `soft_labels` a slot learns the target's probabilities p over the shortlist instead of the
chosen token y:

    -log q_i(y)  becomes  - sum_v p(v) log q_i(v)

The frozen target runs over the whole text once; its states represent everything before a block's
anchor a. Some rows run without the state along the drafted tokens, so that the slots alone learn to
rank candidates. One more block covers the whole text with random tokens known (mask-predict).

A drafter with step allocation also predicts the text length L: (log L - log of the labels)^2 is
added, averaged over the rows.

The validation estimates the tokens per round of tandem decoding without decoding. A round at
position a drafts the tokens a .. a + k - 1. The correct prefix is accepted and the target adds a
token, so the next round starts at

    a' = a + (longest correct prefix) + 1

Along a correct prefix the drafted tokens equal the labels, so the state along the draft can be fed
with labels: one pass over all rows gives a whole round.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.data.prepared import Prepared
from outrider.torch.models import Drafter, DrafterConfig, Seq2Seq, load_ctc
from outrider.torch.models.base import right_padding
from outrider.torch.models.drafter import TrainingSlots
from outrider.torch.nn.loss import IGNORED, counted_places, smoothed_cross_entropy
from outrider.torch.training.batches import count_tokens
from outrider.torch.training.kinds.base import Batches
from outrider.torch.training.kinds.side_decoder import SideDecoderKind
from outrider.torch.training.objective import Inputs, Objective

WITHOUT_STATE = 0.2
"""Share of the rows trained without the state along the drafted tokens."""
SHAPE_STEP = 512
"""The number of slots that are scored is a multiple of this."""
ROUND_BATCHES = 8
"""Batches of the validation set on which rounds are counted."""


class DrafterKind(SideDecoderKind[Drafter]):
    name = "drafter"
    other = "ctc"
    metric = "tokens_per_round"
    config_class = DrafterConfig
    title = "Drafter"
    about = (
        '`drafter` holds a block drafter of {parameters:,} parameters: with `mode="tandem"` it '
        "guesses several tokens at once, and the model confirms or corrects them in one pass."
    )

    def bind(self, config: DrafterConfig, target: Any, folder: Path) -> Drafter:
        target.requires_grad_(False)
        return Drafter(config).bind(target, load_ctc(folder, target))

    def _build(self, prepared: Prepared) -> Drafter:
        model = super()._build(prepared)
        if model.config.copy_layers:
            model.start_as_copies()
        if model.config.shortlist:
            model.set_shortlist(_most_frequent(prepared, model.config.shortlist))
        return model

    def objective(self) -> Objective:
        return DrafterObjective()

    def ratios(self, model: Drafter, batches: Batches) -> dict[str, tuple[int, int]]:
        tokens, rounds = 0, 0
        for inputs in batches(ROUND_BATCHES):
            batch_tokens, batch_rounds = count_rounds(model, inputs)
            tokens, rounds = tokens + batch_tokens, rounds + batch_rounds
        return {"tokens_per_round": (tokens, rounds)}


def _most_frequent(prepared: Prepared, tokens: int) -> Tensor:
    """Return the end token and the most frequent tokens of the training targets."""
    count_V = count_tokens(prepared, "target_ids")
    count_V[prepared.tokenizer.eos_id] = count_V.max() + 1
    return torch.from_numpy(np.argsort(-count_V, kind="stable")[:tokens])


class DrafterObjective(Objective):
    """Labels are the tokens the target itself generated (see `outrider distill`)."""

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        share = self.count(inputs) / divisor
        loss: Tensor = model(lambda drafter: _loss(drafter, inputs, share, smoothing))
        return loss


def _loss(drafter: Drafter, inputs: Inputs, share: float, smoothing: float) -> Tensor:
    config = drafter.config
    target = run_target(drafter, inputs)
    fed_BT, label_BT, memory_BSD, keep_BS = target.fed_BT, target.label_BT, *target.source
    slots = _cut(drafter, label_BT)
    hidden_BND = drafter.train_blocks(target.seen, fed_BT, slots, memory_BSD, keep_BS)
    state_BNR = None
    if config.rank:
        state_BNR = _run_states(drafter, hidden_BND, tokens_at(fed_BT, slots, 0))
        if drafter.training:
            chance_B11 = torch.rand(len(state_BNR), 1, 1, device=state_BNR.device)
            state_BNR = state_BNR * (chance_B11 >= WITHOUT_STATE)
    label_BN = drafter.listed(tokens_at(label_BT, slots, IGNORED))
    weight_BN = (label_BN != IGNORED) * config.decay ** slots.index_N.float()
    # Half of the slots are past the end of their text, and logits are most of the work.
    counted_M = counted_places(label_BN, SHAPE_STEP)
    hidden_MD, label_M = hidden_BND.flatten(0, 1)[counted_M], label_BN.flatten()[counted_M]
    state_MR = None if state_BNR is None else state_BNR.flatten(0, 1)[counted_M]
    weight_M = weight_BN.flatten()[counted_M]
    logits_MV = drafter.logits(hidden_MD, state_MR)
    scale = share / max(1e-9, float(weight_M.sum()))
    if not drafter.training:
        return smoothed_cross_entropy(logits_MV, label_M, smoothing, scale, weight_M)
    if config.soft_labels:
        target_MV = _target_probabilities(drafter, target.hidden_BTD, slots, counted_M)
        loss_M = F.cross_entropy(logits_MV.float(), target_MV, reduction="none")
        loss = scale * (loss_M * weight_M).sum()
    else:
        loss = smoothed_cross_entropy(logits_MV, label_M, smoothing, scale, weight_M)
    right_M = _right(logits_MV.detach(), label_M)
    confidence_M = drafter.confidence_logit(hidden_MD, state_MR).float()
    confidence_loss_M = F.binary_cross_entropy_with_logits(confidence_M, right_M, reduction="none")
    loss = loss + scale * (confidence_loss_M * weight_M).sum()
    if drafter.allocation is None or memory_BSD is None:
        return loss
    length_error_B = drafter.allocation.log_length(memory_BSD, keep_BS) - _log_length(label_BT)
    return loss + share * length_error_B.square().mean()


@torch.no_grad()
def _target_probabilities(
    drafter: Drafter, hidden_BTD: Tensor, slots: TrainingSlots, counted_M: Tensor
) -> Tensor:
    """Return the target's probabilities at these slots over the shortlist."""
    width, last = hidden_BTD.shape[2], hidden_BTD.shape[1] - 1
    place_BN1 = (slots.anchor_BN + slots.index_N).clamp(max=last)[..., None]
    hidden_MD = hidden_BTD.gather(1, place_BN1.expand(-1, -1, width)).flatten(0, 1)[counted_M]
    return drafter.target_logits(hidden_MD).float().softmax(-1)


def _log_length(label_BT: Tensor) -> Tensor:
    """Return the log of the number of labels of every row, including the end token."""
    return (label_BT != IGNORED).sum(1).clamp(min=1).float().log()


def _right(logits_NV: Tensor, label_N: Tensor) -> Tensor:
    """Return 1 where the label has the highest logit; amax is much faster than argmax."""
    label_N1 = label_N[:, None].clamp(min=0)
    return (logits_NV.gather(1, label_N1)[:, 0] == logits_NV.amax(1)).float()


class TargetPass(NamedTuple):
    """Outputs of the frozen target on a batch."""

    hidden_BTD: Tensor
    """Input of its output head."""
    seen: list[Tensor]
    """States of all its layers."""
    source: tuple[Tensor | None, Tensor | None]
    """Encoded source and its mask."""
    fed_BT: Tensor
    label_BT: Tensor


@torch.no_grad()
def run_target(drafter: Drafter, inputs: Inputs) -> TargetPass:
    """Run the target over whole texts."""
    target = drafter.target
    drafter.place_target()
    seen: list[Tensor] = []
    if isinstance(target, Seq2Seq):
        label_BT = inputs["labels"]
        fed_BT = target.shift_right(label_BT)
        keep_BS = right_padding(inputs["attention_mask"])
        memory_BSD = target.encode(inputs["input_ids"], keep_BS)
        hidden_BTD = target.decode(fed_BT, memory_BSD, keep_BS, seen)
        return TargetPass(hidden_BTD, seen, drafter.read(memory_BSD, keep_BS), fed_BT, label_BT)
    label_BT = F.pad(inputs["labels"][:, 1:], (0, 1), value=IGNORED)
    hidden_BTD = target.hidden(inputs["input_ids"], seen)
    return TargetPass(hidden_BTD, seen, (None, None), inputs["input_ids"], label_BT)


def _cut(drafter: Drafter, label_BT: Tensor) -> TrainingSlots:
    """Choose the blocks: random anchors in training, evenly spaced ones in evaluation."""
    config, device = drafter.config, label_BT.device
    rows, length = label_BT.shape
    count_B1 = (label_BT != IGNORED).sum(1, keepdim=True).clamp(min=1)
    if drafter.training:
        place_BA = torch.rand(rows, config.anchors, device=device)
    else:
        place_BA = (torch.arange(config.anchors, device=device) + 0.5) / config.anchors
    anchor_BA = (place_BA * count_B1).long()
    index_K = torch.arange(config.train_block, device=device)
    anchor_BN = anchor_BA.repeat_interleave(config.train_block, dim=1)
    index_N = index_K.repeat(config.anchors)
    block_N = torch.arange(config.anchors, device=device).repeat_interleave(config.train_block)
    known_BN = (index_N == 0).expand(rows, -1)
    if config.whole:
        index_T = torch.arange(length, device=device)
        share_B1 = torch.rand(rows, 1, device=device).mul(2).sub(1).clamp(min=0)
        known_BT = torch.rand(rows, length, device=device) < share_B1
        anchor_BN = torch.cat([anchor_BN, anchor_BN.new_zeros(rows, length)], dim=1)
        index_N = torch.cat([index_N, index_T])
        block_N = torch.cat([block_N, torch.full_like(index_T, config.anchors)])
        known_BN = torch.cat([known_BN, known_BT | (index_T == 0)], dim=1)
    return TrainingSlots(anchor_BN, index_N, block_N, known_BN)


def tokens_at(tokens_BT: Tensor, slots: TrainingSlots, outside: int) -> Tensor:
    """Return the token at each slot's position, `outside` beyond the end."""
    place_BN = slots.anchor_BN + slots.index_N
    last = tokens_BT.shape[1] - 1
    token_BN = tokens_BT.gather(1, place_BN.clamp(max=last))
    return token_BN.masked_fill(place_BN > last, outside)


def _run_states(drafter: Drafter, hidden_BND: Tensor, fed_BN: Tensor) -> Tensor:
    """Run the state along every block: equally long blocks in one batch, then the whole text."""
    config, rows = drafter.config, hidden_BND.shape[0]
    short = config.anchors * config.train_block
    shape = (rows * config.anchors, config.train_block)
    state_MKR = drafter.run_state(
        hidden_BND[:, :short].reshape(*shape, -1), fed_BN[:, :short].reshape(shape)
    )
    state_BNR = state_MKR.reshape(rows, short, -1)
    if not config.whole:
        return state_BNR
    whole_BTR = drafter.run_state(hidden_BND[:, short:], fed_BN[:, short:])
    return torch.cat([state_BNR, whole_BTR], dim=1)


@torch.inference_mode()
def count_rounds(drafter: Drafter, inputs: Inputs) -> tuple[int, int]:
    """Return the tokens of the batch, including end tokens, and the rounds of `train_block` they
    take.
    """
    target = run_target(drafter, inputs)
    fed_BT, label_BT = target.fed_BT, target.label_BT
    count_B1 = (label_BT != IGNORED).sum(1, keepdim=True)
    index_K = torch.arange(drafter.config.train_block, device=label_BT.device)
    anchor_B1, rounds = torch.zeros_like(count_B1), 0
    while bool((active_B1 := anchor_B1 < count_B1).any()):
        slots = TrainingSlots(
            anchor_B1.expand(-1, len(index_K)),
            index_K,
            torch.zeros_like(index_K),
            (index_K == 0).expand(len(label_BT), -1),
        )
        hidden_BKD = drafter.train_blocks(target.seen, fed_BT, slots, *target.source)
        guess_BK = _guess(drafter, hidden_BKD, tokens_at(fed_BT, slots, 0))
        right_BK = guess_BK == tokens_at(label_BT, slots, IGNORED)
        prefix_B1 = right_BK.long().cumprod(1).sum(1, keepdim=True)
        rounds += int(active_B1.sum())
        anchor_B1 = torch.where(active_B1, anchor_B1 + prefix_B1 + 1, anchor_B1)
    return int(count_B1.sum()), rounds


def _guess(drafter: Drafter, hidden_BKD: Tensor, before_BK: Tensor) -> Tensor:
    """Return the draft of every slot, given that all slots before it are right."""
    slots_BKV = drafter.logits(hidden_BKD)
    if not drafter.config.rank:
        return _token_ids(drafter, slots_BKV.argmax(-1))
    place_BKC = slots_BKV.topk(min(drafter.config.candidates, slots_BKV.shape[-1])).indices
    state_BKR = drafter.run_state(hidden_BKD, before_BK)
    score_BKC = drafter.logits(hidden_BKD, state_BKR).gather(-1, place_BKC)
    return _token_ids(drafter, place_BKC.gather(-1, score_BKC.argmax(-1, keepdim=True))[..., 0])


def _token_ids(drafter: Drafter, place_BK: Tensor) -> Tensor:
    return place_BK if drafter.kept_V is None else drafter.kept_V[place_BK]
