"""Attention within hash buckets, round by round, in little memory.

    y_i = sum_j w_ij v_j        w_ij = 2^(s_ij - L_i)        L_i = log2 sum_j 2^s_ij
    s_ij = q_i . k_j            k_j = c q_j / |q_j|          c = log2(e) / sqrt(K)

Every round sorts tokens into slots (`outrider.torch.nn.kernel.hashing`); a block of slots attends
to itself and the few blocks before it. A key counts in the first round that finds it, so rounds
share no keys, and their outputs merge by their L. The backward stores inputs, outputs and L, and
recomputes the scores:

    ds_ij = w_ij (dy_i . v_j - dy_i . y_i) / log2(e)        dk_j = sum_i ds_ij q_i
    dq_i  = sum_j ds_ij k_j + (dk_i - (k_i . dk_i) k_i / c^2) c / |q_i|

Both run head by head, round by round and in runs of blocks, so that few scores exist at a time. For
each round only the slot and the code of every token are stored. Powers are of 2, because PyTorch's
`exp` on a CPU is fifty times slower where the result is 0.
"""

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.torch.nn.kernel.hashing import Layout

AT_ONCE = 1 << 18
"""Scores computed at once on a CPU, which fit its cache; at least one block."""
AT_ONCE_ELSEWHERE = 1 << 22
"""Scores computed at once on other devices."""
ITSELF = -5e4
"""Score of a query's own key: finite, and negligible next to any real score."""
NOTHING = -1e9
"""Masked scores are lowered by at least half of this."""
FAR = -float(1 << 24)
"""Code of an empty slot, far from all tokens' codes."""
LOG2_E = math.log2(math.e)


def attend_in_buckets(
    q_BHTK: Tensor, v_BGTK: Tensor, layout: Layout, *, dropout: float = 0.0
) -> Tensor:
    """Attend to the keys of all rounds; a query without others attends to its own."""
    # A tensor, so that a compiled graph can draw it.
    seed = torch.zeros((), dtype=torch.int64, device="cpu")
    if dropout:
        seed = torch.randint_like(seed, 1 << 62)
    slot_RBHT, code_RBHT, *numbers = layout
    return _attend(q_BHTK, v_BGTK, slot_RBHT, code_RBHT, seed, numbers, dropout)[0]


@torch.library.custom_op("outrider::attend_in_buckets", mutates_args=())
def _attend(
    q_BHTK: Tensor,
    v_BGTK: Tensor,
    slot_RBHT: Tensor,
    code_RBHT: Tensor,
    seed: Tensor,
    numbers: Sequence[int],
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Return outputs and L, [B, H, T, 1].

    A custom operator, because a compiler would unroll its loops.
    """
    layout = Layout(slot_RBHT, code_RBHT, *numbers)
    out_BHTK, lse_BHT1 = _empty_result(q_BHTK, v_BGTK)
    drop = _Dropout(dropout, seed, q_BHTK.device)
    with torch.autocast(q_BHTK.device.type, enabled=False):
        for part in _parts(layout):
            out_TK, lse_T1 = _attend_heads(_Heads.pick(part, q_BHTK, v_BGTK, layout), drop)
            row, heads = part
            out_BHTK[row, heads] = out_TK.view_as(out_BHTK[row, heads])
            lse_BHT1[row, heads] = lse_T1.view_as(lse_BHT1[row, heads])
    return out_BHTK, lse_BHT1


@torch.library.custom_op("outrider::attend_in_buckets_backward", mutates_args=())
def _attend_backward(
    grad_BHTK: Tensor,
    q_BHTK: Tensor,
    v_BGTK: Tensor,
    slot_RBHT: Tensor,
    code_RBHT: Tensor,
    seed: Tensor,
    out_BHTK: Tensor,
    lse_BHT1: Tensor,
    numbers: Sequence[int],
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of queries and values."""
    layout = Layout(slot_RBHT, code_RBHT, *numbers)
    dq_BHTK = torch.empty_like(q_BHTK, memory_format=torch.contiguous_format)
    dv_BGTK = torch.zeros(v_BGTK.shape, dtype=lse_BHT1.dtype, device=v_BGTK.device)
    drop = _Dropout(dropout, seed, q_BHTK.device)
    with torch.autocast(q_BHTK.device.type, enabled=False):
        for part in _parts(layout):
            group = _Heads.pick(part, q_BHTK, v_BGTK, layout)
            row, heads = part
            grad, out, lse = (x[row, heads] for x in (grad_BHTK, out_BHTK, lse_BHT1))
            dq_TK, dv_TK = _heads_backward(group, grad, out, lse, drop)
            dq_BHTK[row, heads] = dq_TK.view_as(dq_BHTK[row, heads])
            dv_GTK = dv_TK.view(-1, *v_BGTK.shape[2:])
            dv_BGTK[row].index_add_(0, _value_heads(heads, q_BHTK, v_BGTK), dv_GTK)
    return dq_BHTK, dv_BGTK.to(v_BGTK.dtype)


def _empty_result(q_BHTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
    shape = q_BHTK.shape[:3]
    wide = torch.promote_types(q_BHTK.dtype, torch.float32)
    return v_BGTK.new_empty(*shape, v_BGTK.shape[3]), q_BHTK.new_empty(*shape, 1, dtype=wide)


@_attend.register_fake
def _(
    q_BHTK: Tensor,
    v_BGTK: Tensor,
    slot_RBHT: Tensor,
    code_RBHT: Tensor,
    seed: Tensor,
    numbers: Sequence[int],
    dropout: float,
) -> tuple[Tensor, Tensor]:
    return _empty_result(q_BHTK, v_BGTK)


@_attend_backward.register_fake
def _(
    grad_BHTK: Tensor,
    q_BHTK: Tensor,
    v_BGTK: Tensor,
    slot_RBHT: Tensor,
    code_RBHT: Tensor,
    seed: Tensor,
    out_BHTK: Tensor,
    lse_BHT1: Tensor,
    numbers: Sequence[int],
    dropout: float,
) -> tuple[Tensor, Tensor]:
    dq, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q_BHTK, v_BGTK))
    return dq, dv


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.numbers, ctx.dropout = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, grad_BHTK: Tensor, _: Tensor) -> tuple[Any, ...]:
    grads = _attend_backward(grad_BHTK, *ctx.saved_tensors, ctx.numbers, ctx.dropout)
    return *grads, None, None, None, None, None


_attend.register_autograd(_backward, setup_context=_remember)


class _Dropout:
    """Dropout with masks that are reproducible from a seed."""

    def __init__(self, share: float, seed: Tensor, device: torch.device) -> None:
        self.share = share
        self.generator = torch.Generator(device).manual_seed(int(seed)) if share else None

    def __call__(self, like: Tensor) -> Tensor | None:
        """Return the next scaled mask; None without dropout."""
        if self.generator is None:
            return None
        kept = torch.empty_like(like).bernoulli_(1 - self.share, generator=self.generator)
        return kept.mul_(1 / (1 - self.share))


def _parts(layout: Layout) -> Iterator[tuple[int, slice]]:
    """Yield groups that are computed together: some heads of one row."""
    _, rows, heads, _ = layout.slot_RBHT.shape
    size = max(1, _at_once(layout.slot_RBHT.device) // (layout.slots * layout.near))
    for row in range(rows):
        for first in range(0, heads, size):
            yield row, slice(first, min(first + size, heads))


def _at_once(device: torch.device) -> int:
    return AT_ONCE if device.type == "cpu" else AT_ONCE_ELSEWHERE


def _value_heads(heads: slice, q_BHTK: Tensor, v_BGTK: Tensor) -> Tensor:
    """Return the value heads of these query heads."""
    shared = q_BHTK.shape[1] // v_BGTK.shape[1]
    return torch.arange(heads.start, heads.stop, device=v_BGTK.device) // shared


class _Heads(NamedTuple):
    """Some heads of one row: their tokens concatenated, and one extra row for empty slots.

    Here T counts the tokens of all these heads, and P is T + 1.
    """

    q_PK: Tensor
    v_PK: Tensor
    scale_P1: Tensor
    """Factors from queries to keys."""
    slot_RGN: Tensor
    """Slot by round, head and token."""
    code_RP: Tensor
    layout: Layout

    @classmethod
    def pick(
        cls, part: tuple[int, slice], q_BHTK: Tensor, v_BGTK: Tensor, layout: Layout
    ) -> "_Heads":
        """Select some heads of one row."""
        row, heads = part
        q_PK = _and_empty(q_BHTK[row, heads])
        v_PK = _and_empty(v_BGTK[row].index_select(0, _value_heads(heads, q_BHTK, v_BGTK)))
        wide = torch.promote_types(q_PK.dtype, torch.float32)
        length_P1 = q_PK.to(wide).norm(dim=1, keepdim=True).clamp_(min=1e-12)
        code_RP = F.pad(layout.code_RBHT[:, row, heads].flatten(1), (0, 1), value=FAR)
        return cls(
            q_PK,
            v_PK,
            _key_length(q_PK) / length_P1,
            layout.slot_RBHT[:, row, heads],
            code_RP,
            layout,
        )

    def sorted_rounds(self) -> list["_Round"]:
        """Return the sorted tokens of every round."""
        return [
            _Round(slot_GN, self.code_RP[: number + 1], self.layout)
            for number, slot_GN in enumerate(self.slot_RGN)
        ]

    def sort(self, run: "_Run") -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values in the slots of a run, [L, K] each."""
        q_LK, v_LK = run.take(self.q_PK), run.take(self.v_PK)
        return q_LK, (q_LK * run.take(self.scale_P1)).to(q_LK.dtype), v_LK


class _Round:
    """One round of some heads: their slots concatenated.

    Each head starts with empty blocks, so that no block reads the previous head.
    """

    def __init__(self, slot_GN: Tensor, code_RP: Tensor, layout: Layout) -> None:
        heads, tokens = len(slot_GN), slot_GN.numel()
        self.layout = layout
        self.lead = layout.back * layout.block
        head_G1 = torch.arange(heads, device=slot_GN.device)[:, None]
        slot_GN = slot_GN + self.lead + head_G1 * (layout.slots + self.lead)
        self.slot_T = slot_GN.flatten()
        blocks = heads * (layout.slots + self.lead) // layout.block - layout.back
        most = max(1, _at_once(slot_GN.device) // (layout.block * layout.near))
        self.runs = -(-blocks // most)
        # All of one size, so that no sum depends on the run of a block.
        self.step = -(-blocks // self.runs) * layout.block
        self.size = self.lead + self.runs * self.step
        token_T = torch.arange(tokens, device=slot_GN.device)
        self.token_S = token_T.new_full((self.size,), tokens).scatter_(0, self.slot_T, token_T)
        self.code_RS = code_RP.index_select(1, self.token_S)

    def cut(self) -> Iterator["_Run"]:
        """Yield runs of blocks."""
        for number in range(self.runs):
            slots = slice(number * self.step, (number + 1) * self.step + self.lead)
            yield _Run(slots, self.token_S[slots], self.code_RS[:, slots], self.layout)

    def restore(self, x_SK: Tensor) -> Tensor:
        """Map slots to tokens, [T, K]."""
        return x_SK.index_select(0, self.slot_T)


class _Run(NamedTuple):
    """A run of n blocks of C queries, each with W keys; L slots hold them all."""

    slots: slice
    token_L: Tensor
    code_RL: Tensor
    """Codes of all rounds so far, this one last."""
    layout: Layout

    @property
    def lead(self) -> int:
        """Slots before the first query."""
        return self.layout.back * self.layout.block

    def take(self, x_PK: Tensor) -> Tensor:
        """Map tokens to slots."""
        return x_PK.index_select(0, self.token_L)

    def queries(self, x_L: Tensor) -> Tensor:
        """View the slots of the blocks: [L, ...] as [n, C, ...]."""
        return x_L[self.lead :].view(-1, self.layout.block, *x_L.shape[1:])

    def near(self, x_L: Tensor) -> Tensor:
        """View the keys of each block, its own last: [L, ...] as [n, W, ...]."""
        return x_L.unfold(0, self.layout.near, self.layout.block).movedim(-1, 1)

    def add_near(self, into_LK: Tensor, x_nWK: Tensor) -> None:
        """Add to every slot the values from all blocks that read it."""
        into = into_LK.view(-1, self.layout.block, into_LK.shape[1])
        block, count = self.layout.block, len(x_nWK)
        for ahead in range(self.layout.back + 1):
            into[ahead : ahead + count] += x_nWK[:, ahead * block : (ahead + 1) * block]

    def scores(self, q_LK: Tensor, k_LK: Tensor) -> Tensor:
        """Return s, [n, C, W], in float32 at least."""
        s_nCW = torch.bmm(self.queries(q_LK), self.near(k_LK).transpose(1, 2))
        s_nCW = s_nCW.to(torch.promote_types(s_nCW.dtype, torch.float32))
        self._hide(s_nCW)
        if len(self.code_RL) == 1:  # only the first round includes a query's own key
            self.itself(s_nCW).fill_(ITSELF)
        return s_nCW

    def itself(self, x_nCW: Tensor) -> Tensor:
        """View the scores of queries with their own keys."""
        return x_nCW.diagonal(self.lead, 1, 2)

    def _hide(self, s_nCW: Tensor) -> None:
        """Mask pairs that this round does not find or an earlier one has found.

        By sums, because comparing and filling is several times slower on a CPU.
        """
        half = self.layout.half
        *earlier, last = self.code_RL
        s_nCW.add_(torch.threshold_(self._apart(last), half, 0.0), alpha=NOTHING)
        if earlier:
            least_nCW = reduce(torch.minimum, map(self._apart, earlier))
            s_nCW.add_(least_nCW.neg_().add_(half + 1).clamp_(min=0), alpha=NOTHING)

    def _apart(self, code_L: Tensor) -> Tensor:
        return self.layout.apart(self.queries(code_L)[..., None], self.near(code_L)[:, None])


def _attend_heads(group: _Heads, drop: _Dropout) -> tuple[Tensor, Tensor]:
    """Return outputs and L, [T, K] and [T, 1], in float32 at least."""
    wide, tokens = group.scale_P1.dtype, len(group.v_PK) - 1
    out_TK = group.v_PK.new_zeros(tokens, group.v_PK.shape[1], dtype=wide)
    lse_T1 = out_TK.new_full((tokens, 1), -torch.inf)
    rounds = group.sorted_rounds()
    out_SK, lse_S1 = (x.new_empty(rounds[0].size, x.shape[1]) for x in (out_TK, lse_T1))
    for this_round in rounds:
        for run in this_round.cut():
            out_nCK, lse_nC1 = _attend_run(group, run, drop)
            run.queries(out_SK[run.slots]).copy_(out_nCK)
            run.queries(lse_S1[run.slots]).copy_(lse_nC1)
        new_T1 = this_round.restore(lse_S1)
        both_T1 = torch.logaddexp2(lse_T1, new_T1)
        out_TK.lerp_(this_round.restore(out_SK), (new_T1 - both_T1).exp2_())
        lse_T1 = both_T1
    return out_TK, lse_T1


def _attend_run(group: _Heads, run: _Run, drop: _Dropout) -> tuple[Tensor, Tensor]:
    """Return outputs and L of the run's queries in this round, [n, C, K] and [n, C, 1]."""
    q_LK, k_LK, v_LK = group.sort(run)
    w_nCW = run.scores(q_LK, k_LK)
    most_nC1 = w_nCW.amax(-1, keepdim=True)
    w_nCW.sub_(most_nC1).exp2_()
    sum_nC1 = w_nCW.sum(-1, keepdim=True)
    kept_nCW = drop(w_nCW)
    if kept_nCW is not None:
        w_nCW.mul_(kept_nCW)
    out_nCK = torch.bmm(w_nCW.to(v_LK.dtype), run.near(v_LK))
    return out_nCK / sum_nC1, most_nC1 + sum_nC1.log2()


def _heads_backward(
    group: _Heads, grad_GNK: Tensor, out_GNK: Tensor, lse_GN1: Tensor, drop: _Dropout
) -> tuple[Tensor, Tensor]:
    """Return gradients of queries and values, [T, K] each, in float32 at least."""
    wide = lse_GN1.dtype
    lse_P1 = _and_empty(lse_GN1)
    grad_PK = _and_empty(grad_GNK)
    delta_P1 = _and_empty((grad_GNK.to(wide) * out_GNK).sum(-1, keepdim=True))
    totals = [x.new_zeros(len(x) - 1, x.shape[1], dtype=wide) for x in (group.q_PK, group.v_PK)]
    rounds = group.sorted_rounds()
    grads = [x.new_empty(rounds[0].size, x.shape[1]) for x in totals]
    for this_round in rounds:
        for x_SK in grads:
            x_SK.zero_()
        for run in this_round.cut():
            into = [x_SK[run.slots] for x_SK in grads]
            _run_backward(group, run, (grad_PK, lse_P1, delta_P1), into, drop)
        for total_TK, x_SK in zip(totals, grads, strict=True):
            total_TK += this_round.restore(x_SK)
    return totals[0].div_(LOG2_E), totals[1]


def _run_backward(
    group: _Heads,
    run: _Run,
    result: tuple[Tensor, Tensor, Tensor],
    into: list[Tensor],
    drop: _Dropout,
) -> None:
    """Add the gradients of one run to those of its slots."""
    dq_LK, dv_LK = into
    q_LK, k_LK, v_LK = group.sort(run)
    dy_nCK, lse_nC1, delta_nC1 = (run.queries(run.take(x)) for x in result)
    w_nCW = run.scores(q_LK, k_LK).sub_(lse_nC1).exp2_()
    dw_nCW = torch.bmm(dy_nCK, run.near(v_LK).transpose(1, 2)).to(w_nCW.dtype)
    kept_nCW, used_nCW = drop(w_nCW), w_nCW
    if kept_nCW is not None:
        dw_nCW.mul_(kept_nCW)
        used_nCW = kept_nCW.mul_(w_nCW)
    run.add_near(dv_LK, torch.bmm(used_nCW.to(dy_nCK.dtype).transpose(1, 2), dy_nCK))

    ds_nCW = dw_nCW.sub_(delta_nC1).mul_(w_nCW)
    if len(run.code_RL) == 1:
        run.itself(ds_nCW).zero_()
    ds_nCW = ds_nCW.to(q_LK.dtype)
    run.queries(dq_LK).add_(torch.bmm(ds_nCW, run.near(k_LK)))
    dk_LK = torch.zeros_like(dq_LK)
    run.add_near(dk_LK, torch.bmm(ds_nCW.transpose(1, 2), run.queries(q_LK)))
    along_L1 = (dk_LK * k_LK).sum(-1, keepdim=True).div_(_key_length(k_LK) ** 2)
    dq_LK.add_(dk_LK.sub_(along_L1 * k_LK).mul_(run.take(group.scale_P1)))


def _key_length(x_K: Tensor) -> float:
    """Return c, which gives q . k / sqrt(K) in powers of two."""
    return LOG2_E * x_K.shape[-1] ** -0.5


def _and_empty(x_GNK: Tensor) -> Tensor:
    """Concatenate the tokens of all heads, and a row of zeros."""
    return F.pad(x_GNK.flatten(0, 1), (0, 0, 0, 1))
