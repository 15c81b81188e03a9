"""Connectionist temporal classification (Graves et al., 2006).

Every slot outputs a token or a blank. A path pi of U slots maps to a text by merging equal
neighbours and dropping blanks; the probability of a text is the sum over its paths:

    p(y) = sum_{pi -> y} prod_u p_u(pi_u)          path(y) = argmax_{pi -> y} sum_u z_u(pi_u)

Loss and best path depend only on the blank and the row's own labels, so they are computed on those
columns; the logits are read once, a few rows at a time, as in `nn.loss`:

    dloss/dz_u = softmax(z_u) - gamma_u            gamma_u(v) = p(pi_u = v | pi -> y)
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_CHUNK = 2**18
"""Logits per chunk on a CPU: 1 MiB of float32, which fits the cache of a core."""
_NEVER = -1e4
"""Log-probability of impossible states; finite, so that differences are never NaN."""


def fits(labels_BT: Tensor, labels_B: Tensor, slots_B: Tensor) -> Tensor:
    """Whether each row has enough slots: one per label, and a blank between equal neighbours."""
    inside_BT = torch.arange(labels_BT.shape[1], device=labels_BT.device) < labels_B[:, None]
    twins_BT = (labels_BT[:, 1:] == labels_BT[:, :-1]) & inside_BT[:, 1:]
    return labels_B + twins_BT.sum(1) <= slots_B


def viterbi(
    logits_BUV: Tensor, labels_BT: Tensor, labels_B: Tensor, slots_B: Tensor, *, blank: int
) -> Tensor:
    """Return the likeliest path of each text: a token or the blank per slot, [B, U].

    Args:
        logits_BUV: Scores of every slot, normalised or not.
        labels_BT: The texts, right-padded with any value.
        labels_B: Their lengths.
        slots_B: Slots of each row. The path is -1 past them, and in rows with too few slots.
        blank: The blank token.
    """
    batch, slots, _ = logits_BUV.shape
    inside_BT = torch.arange(labels_BT.shape[1], device=labels_BT.device) < labels_B[:, None]
    labels_BT = torch.where(inside_BT, labels_BT, blank)
    # States: blank, first label, blank, second label, ..., blank.
    token_BL = torch.full((batch, 2 * labels_BT.shape[1] + 1), blank, device=labels_BT.device)
    token_BL[:, 1::2] = labels_BT
    index_BUL = token_BL[:, None].expand(-1, slots, -1)
    score_UBL = logits_BUV.gather(2, index_BUL).transpose(0, 1)
    score_UBL = score_UBL.to(torch.promote_types(score_UBL.dtype, torch.float32))
    here_UB1 = torch.arange(slots, device=slots_B.device)[:, None, None] < slots_B[:, None]
    score_UBL = score_UBL * here_UB1
    best_BL, moves = _forward(score_UBL, here_UB1, token_BL, blank)
    state_B1 = _last_state(best_BL, labels_B)
    path = []
    for here_B1, move_BL in zip(here_UB1.flip(0), reversed(moves), strict=True):
        path.append(token_BL.gather(1, state_B1).masked_fill(~here_B1, -1))
        state_B1 = state_B1 - move_BL.gather(1, state_B1)
    path_BU = torch.cat(path[::-1], dim=1)
    return path_BU.masked_fill(~fits(labels_BT, labels_B, slots_B)[:, None], -1)


def _forward(
    score_UBL: Tensor, here_UB1: Tensor, token_BL: Tensor, blank: int
) -> tuple[Tensor, list[Tensor]]:
    """Return the score of the best path to each state, and the moves of every step."""
    # Only a blank between two different labels can be skipped.
    skip_BL = torch.zeros_like(token_BL, dtype=torch.bool)
    skip_BL[:, 2:] = (token_BL[:, 2:] != blank) & (token_BL[:, 2:] != token_BL[:, :-2])
    best_BL = torch.full_like(score_UBL[0], -math.inf)
    best_BL[:, :2] = score_UBL[0, :, :2]
    moves = [torch.zeros_like(token_BL)]
    for score_BL, here_B1 in zip(score_UBL[1:], here_UB1[1:], strict=True):
        padded_BL = F.pad(best_BL, (2, 0), value=-math.inf)
        two_BL = padded_BL[:, :-2].masked_fill(~skip_BL, -math.inf)
        best = torch.stack([best_BL, padded_BL[:, 1:-1], two_BL]).max(0)
        best_BL = torch.where(here_B1, best.values + score_BL, best_BL)
        moves.append(best.indices * here_B1)
    return best_BL, moves


def _last_state(best_BL: Tensor, labels_B: Tensor) -> Tensor:
    """Return the final state of each path: the last label or the blank after it."""
    end_B1 = 2 * labels_B[:, None]
    before_B1 = (end_B1 - 1).clamp(min=0)
    earlier_B1 = best_BL.gather(1, before_B1) > best_BL.gather(1, end_B1)
    return torch.where(earlier_B1, before_B1, end_B1)


class _Task(NamedTuple):
    """Arguments of the loss without gradients."""

    labels_BT: Tensor
    labels_B: Tensor
    slots_B: Tensor
    blank: int
    smoothing: float
    scale: float


def ctc_loss(
    logits_BUV: Tensor,
    labels_BT: Tensor,
    labels_B: Tensor,
    slots_B: Tensor,
    *,
    blank: int,
    smoothing: float = 0.0,
    scale: float = 1.0,
) -> Tensor:
    """Return the sum of -log p(y) over all rows, times `scale`, in float32.

    Rows with too few slots for their text are left out. With `smoothing` e the loss is
    (1 - e) (-log p(y)) + e sum_u mean_v -log p_u(v). Other arguments as in `viterbi`.
    """
    task = _Task(labels_BT, labels_B, slots_B, blank, smoothing, scale)
    return _Loss.apply(logits_BUV, task)  # type: ignore[no-untyped-call]


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_BUV: Tensor, task: _Task) -> Tensor:
        batch, slots, vocabulary = logits_BUV.shape
        possible_B = fits(task.labels_BT, task.labels_B, task.slots_B)
        here_BU = torch.arange(slots, device=logits_BUV.device) < task.slots_B[:, None]
        wide = torch.promote_types(logits_BUV.dtype, torch.float32)
        weight_N1 = (here_BU & possible_B[:, None]).reshape(-1, 1).to(wide)
        grad_NV = torch.empty_like(logits_BUV.flatten(0, 1)) if ctx.needs_input_grad[0] else None
        lse_N1, spread = _normalise(logits_BUV.flatten(0, 1), grad_NV, weight_N1, task)

        classes_BC, first_BC = _classes(task)
        class_BUC = classes_BC[:, None].expand(-1, slots, -1)
        log_prob_BUC = logits_BUV.gather(2, class_BUC).to(wide) - lse_N1.view(batch, slots, 1)
        nll_B, slope_BUC = _solve(log_prob_BUC, first_BC, task, gradient=grad_NV is not None)
        if grad_NV is not None:
            weight_BU1 = weight_N1.view(batch, slots, 1) * task.scale
            slope_BUC = (slope_BUC - task.smoothing / vocabulary) * weight_BU1
            row_N1 = torch.arange(batch * slots, device=grad_NV.device)[:, None]
            # Overwritten, not added: p - gamma must be rounded once, after the difference.
            grad_NV[row_N1, class_BUC.flatten(0, 1)] = slope_BUC.flatten(0, 1).to(grad_NV.dtype)
        ctx.save_for_backward(grad_NV)
        ctx.shape = logits_BUV.shape
        return ((1 - task.smoothing) * (nll_B * possible_B).sum() + spread) * task.scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (grad_NV,) = ctx.saved_tensors
        grad_BUV = grad_NV.view(ctx.shape)
        # A training loss is the root of its graph: skip the multiplication by one.
        if grad.device.type == "cpu" and grad.item() == 1:
            return grad_BUV, None
        return grad_BUV * grad.to(grad_BUV.dtype), None


def _normalise(
    logits_NV: Tensor, grad_NV: Tensor | None, weight_N1: Tensor, task: _Task
) -> tuple[Tensor, Tensor]:
    """Return the normaliser of every slot and the smoothing term; writes softmax - e / V."""
    rows, vocabulary = logits_NV.shape
    step = max(1, _CHUNK // vocabulary if logits_NV.device.type == "cpu" else rows)
    normalisers, spreads = [], []
    for start in range(0, rows, step):
        part = slice(start, start + step)
        z_NV = logits_NV[part]
        wide_NV = z_NV.to(weight_N1.dtype, copy=True)
        mean_N1 = wide_NV.mean(1, keepdim=True) if task.smoothing else 0.0
        top_N1 = wide_NV.amax(1, keepdim=True)
        exp_NV = wide_NV.sub_(top_N1).exp_()
        sum_N1 = exp_NV.sum(1, keepdim=True)
        lse_N1 = top_N1 + sum_N1.log()
        normalisers.append(lse_N1)
        spreads.append((task.smoothing * weight_N1[part] * (lse_N1 - mean_N1)).sum())
        if grad_NV is not None:
            scale_N1 = weight_N1[part] * task.scale
            slope_NV = exp_NV.mul_(scale_N1 / sum_N1)
            if task.smoothing:
                slope_NV.sub_(scale_N1 * (task.smoothing / vocabulary))
            grad_NV[part] = slope_NV
    return torch.cat(normalisers), torch.stack(spreads).sum()


def _classes(task: _Task) -> tuple[Tensor, Tensor]:
    """Return the blank and the labels of each row, and the first index of each of them."""
    labels_BT = task.labels_BT
    inside_BT = torch.arange(labels_BT.shape[1], device=labels_BT.device) < task.labels_B[:, None]
    ids_BC = F.pad(torch.where(inside_BT, labels_BT, task.blank), (1, 0), value=task.blank)
    return ids_BC, (ids_BC[:, :, None] == ids_BC[:, None, :]).int().argmax(-1)


def _solve(
    log_prob_BUC: Tensor, first_BC: Tensor, task: _Task, *, gradient: bool
) -> tuple[Tensor, Tensor]:
    """Return -log p(y) of each row and, for each class and slot, p - (1 - e) gamma."""
    prob_BUC = log_prob_BUC.exp()
    place_C = torch.arange(first_BC.shape[1], device=first_BC.device)
    repeated_B1C = (first_BC != place_C)[:, None]
    log_prob_BUC = log_prob_BUC.masked_fill(repeated_B1C, _NEVER)
    # One more class for all other tokens, so that the classes form a distribution.
    seen_BU1 = prob_BUC.masked_fill(repeated_B1C, 0.0).sum(-1, keepdim=True)
    rest_BU1 = torch.log1p(-seen_BU1.clamp(max=1.0)).clamp(min=_NEVER)
    with torch.enable_grad():
        leaf_BUC = torch.cat([log_prob_BUC, rest_BU1], dim=-1).detach().requires_grad_()
        nll_B = F.ctc_loss(
            leaf_BUC.log_softmax(-1).transpose(0, 1),
            first_BC[:, 1:],
            task.slots_B,
            task.labels_B,
            reduction="none",
            zero_infinity=True,
        )
        if not gradient:
            return nll_B.detach(), prob_BUC
        (slope_BUC,) = torch.autograd.grad(nll_B.sum(), leaf_BUC)
    slope_BUC = slope_BUC[..., :-1].gather(2, first_BC[:, None].expand_as(prob_BUC))
    gamma_BUC = prob_BUC - slope_BUC
    return nll_B.detach(), prob_BUC - (1 - task.smoothing) * gamma_BUC
