"""Attention among tokens of one hash bucket (Reformer: Kitaev et al., 2020, arXiv:2001.04451).

    k_j = q_j / |q_j|                      queries and keys are shared
    causal    S_i = union over rounds of {j <= i : j is one of the last m of i's bucket}
    chunked   S_i = union over rounds of {j in i's bucket : j in i's chunk of m or the one before},
              chunks cut from the tokens sorted by (bucket, position)

A token sees itself only where it would see nothing else. A key that several rounds find counts
once. Time O(T log T + rounds T (m + N) K) for N buckets, memory O(rounds T K). The rotations are
drawn like weights, differ by layer and head, and are saved with the model; no gradient goes through
the choice of keys.

`chunked` is the paper's. There, later tokens move the ends of chunks and so decide which *past*
keys a query sees; only `causal` can stand in a decoder. Decoding keeps every token and reads at
most rounds * m of them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from outrider.errors import ConfigError
from outrider.nn.attention.base import AttentionBase, AttentionConfig, Cost, HeadShape
from outrider.nn.cache import SLACK, Cache, Room, Step
from outrider.nn.chain import ChainCache
from outrider.nn.dense import attend
from outrider.nn.dropout import dropout as drop
from outrider.nn.hashing import (
    Layout,
    causal_layout,
    chunked_layout,
    draw_rotations,
    hash_buckets,
)

__all__ = ["Attention", "Config"]

FORMS = ("auto", "causal", "chunked")
LIMITS = {"rounds": (1, 64), "buckets": (2, 1 << 12), "chunk": (2, 1 << 16)}
DENSE_UP_TO = 8
"""Sequences of up to this many chunks take the dense path."""
AT_ONCE = 1 << 20
"""Scores computed at once: heads are worked off in groups of about this many."""
ITSELF, NOTHING = -5e4, -1e9
"""Scores of a query's own key and of a hidden one: finite, and lost in any sum with a real one."""


@dataclass(frozen=True, kw_only=True)
class Config(AttentionConfig):
    """Options of `kind: lsh`."""

    form: str = "auto"
    """causal, chunked, or auto: causal in decoders, chunked in encoders."""
    rounds: int = 4
    """Times everything is hashed; a pair that one round misses, another may find."""
    buckets: int = 128
    """Buckets of a round, an even number; T / chunk or twice that is a good choice."""
    chunk: int = 64
    """Tokens m of its bucket that a query sees a round; in the chunked form m to 2 m."""
    redraw: bool = False
    """Hash with new rotations in every training pass, as the paper does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in FORMS:
            raise ConfigError("attention.form", f"unknown {self.form!r}; expected one of {FORMS}")
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"attention.{name}", f"got {value}, expected {low} to {high}")
        if self.buckets % 2:
            raise ConfigError("attention.buckets", f"got {self.buckets}, expected an even number")


class Attention(AttentionBase):
    """Hashes queries and attends inside buckets. The keys it is given are not used."""

    config: Config
    positional = False
    columns_ok = False
    rotation: Tensor

    def __init__(
        self, config: Config, *, causal: bool, dropout: float = 0.0, shape: HeadShape
    ) -> None:
        super().__init__(config, causal=causal, dropout=dropout, shape=shape)
        if causal and config.form == "chunked":
            raise ConfigError(
                "attention.form",
                "'chunked' lets later tokens choose which past a token sees; use form: causal",
            )
        self.chunked = config.form == "chunked" or (config.form == "auto" and not causal)
        rotation = draw_rotations(config.rounds, shape.heads, shape.width, config.buckets)
        self.register_buffer("rotation", rotation)

    def sees(self, i: Tensor, j: Tensor) -> Tensor:
        """What positions allow; which of these a query sees, its content says."""
        return (j == j) & (i == i) if self.chunked else j <= i

    def cost(self, length: int) -> Cost:
        """At most m keys (chunked: 2 m) a query and round."""
        all_pairs = length * length if self.chunked else length * (length + 1) // 2
        width = 2 * self.config.chunk if self.chunked else self.config.chunk
        return Cost(pairs=min(all_pairs, self.config.rounds * length * width), slots=length)

    def run(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, keep_BT: Tensor | None) -> Tensor:
        """Sorted blocks where they pay, one dense pass otherwise."""
        if q_BHTK.shape[2] <= DENSE_UP_TO * self.config.chunk:
            return self.reference(q_BHTK, k_BGTK, v_BGTK, keep_BT=keep_BT)
        layout = self._layout(q_BHTK, keep_BT)
        k_BHTK, v_BHTK = self._shared(q_BHTK, k_BGTK, v_BGTK)
        rows = [x.flatten(0, 1) for x in (q_BHTK, k_BHTK, v_BHTK)]
        indices = [x.flatten(1, 2) for x in (layout.slot_RBHT, layout.code_RBHT)]
        group = max(1, AT_ONCE // (layout.slots * layout.block * (layout.back + 1)))
        outputs = []
        for start in range(0, len(rows[0]), group):
            some = slice(start, start + group)
            q_GTK, k_GTK, v_GTK = (x[some] for x in rows)
            slot_RGT, code_RGT = (x[:, some] for x in indices)
            again = len(rows[0]) > group
            outputs.append(
                self._sorted(q_GTK, k_GTK, v_GTK, slot_RGT, code_RGT, layout, again=again)
            )
        return torch.cat(outputs).view_as(v_BHTK)

    def reference(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, *, keep_BT: Tensor | None = None
    ) -> Tensor:
        """The pattern that the buckets give, as a dense mask."""
        layout = self._layout(q_BHTK, keep_BT)
        k_BHTK, v_BHTK = self._shared(q_BHTK, k_BGTK, v_BGTK)
        length = q_BHTK.shape[2]
        itself_TT = torch.eye(length, dtype=torch.bool, device=q_BHTK.device)
        keep_BHTT = torch.zeros_like(itself_TT)
        for code_BHT in layout.code_RBHT:
            keep_BHTT = keep_BHTT | layout.found(code_BHT[..., :, None], code_BHT[..., None, :])
        keep_BHTT = keep_BHTT & ~itself_TT
        keep_BHTT = keep_BHTT | (itself_TT & ~keep_BHTT.any(-1, keepdim=True))
        return attend(q_BHTK, k_BHTK, v_BHTK, keep=keep_BHTT, dropout=self.active_dropout)

    def new_cache(self, room: Room) -> Cache:
        """Every token, with the chains of its buckets."""
        room = room._replace(heads=self.shape.heads)
        return ChainCache(room, rounds=self.config.rounds, buckets=self.config.buckets)

    def extend(
        self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, cache: Cache, step: Step
    ) -> Tensor:
        """Append tokens and attend from each to the chains it hangs on."""
        assert isinstance(cache, ChainCache)
        bucket_BHRT = self._hash(q_BHTK).movedim(0, 2)
        position_BT = step.positions.index_BT.expand(len(q_BHTK), -1)
        k_BHCK, v_BHCK = cache.append(
            *self._shared(q_BHTK, k_BGTK, v_BGTK), bucket_BHRT, position_BT, step.positions.end
        )
        if step.fresh:
            return self(q_BHTK, k_BGTK, v_BGTK)
        steps = max(1, min(self.config.chunk, step.positions.end) - 1)
        outputs = []
        for start in range(0, step.tokens, SLACK):  # bounds what is gathered at once
            some = slice(start, start + SLACK)
            chain_BHRTS = cache.walk(position_BT[:, some], steps)
            outputs.append(
                _attend_chains(
                    q_BHTK[:, :, some], k_BHCK, v_BHCK, chain_BHRTS, position_BT[:, some]
                )
            )
        return torch.cat(outputs, dim=2)

    def _shared(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Keys made of queries, and values of grouped heads repeated.

        Columns beyond the head's width are a bias, and a bias is not shared.
        """
        width, repeats = self.shape.width, self.shape.heads // v_BGTK.shape[1]
        k_BHTK = F.normalize(q_BHTK[..., :width], dim=-1)
        if q_BHTK.shape[-1] > width:
            bias = k_BGTK[..., width:].repeat_interleave(repeats, dim=1)
            k_BHTK = torch.cat([k_BHTK, bias], dim=-1)
        return k_BHTK, v_BGTK.repeat_interleave(repeats, dim=1) if repeats > 1 else v_BGTK

    def _hash(self, q_BHTK: Tensor) -> Tensor:
        rotation = self.rotation
        if self.training and self.config.redraw:
            rotation = torch.randn_like(rotation)
        return hash_buckets(q_BHTK[..., : self.shape.width], rotation)

    def _layout(self, q_BHTK: Tensor, keep_BT: Tensor | None) -> Layout:
        """Sort tokens; padding goes to a bucket of its own, behind all others."""
        bucket_RBHT, buckets = self._hash(q_BHTK), self.config.buckets
        if keep_BT is not None:
            bucket_RBHT = bucket_RBHT.masked_fill(~keep_BT[:, None], buckets)
            buckets += 1
        if self.chunked:
            return chunked_layout(bucket_RBHT, self.config.chunk)
        return causal_layout(bucket_RBHT, buckets, self.config.chunk)

    def _sorted(
        self,
        q_GTK: Tensor,
        k_GTK: Tensor,
        v_GTK: Tensor,
        slot_RGT: Tensor,
        code_RGT: Tensor,
        layout: Layout,
        *,
        again: bool,
    ) -> Tensor:
        """Attend round by round and merge, each key in the first round that finds it.

        `again` computes the scores of a round once more in the backward rather than keep them.
        """
        outs, sums = [], []
        for number, slot_GT in enumerate(slot_RGT):
            inputs = (q_GTK, k_GTK, v_GTK, slot_GT, code_RGT[: number + 1], layout)
            if again and torch.is_grad_enabled():
                out_GTK, sum_GT = checkpoint(self._round, *inputs, use_reentrant=False)
            else:
                out_GTK, sum_GT = self._round(*inputs)
            outs.append(out_GTK)
            sums.append(sum_GT)
        if len(outs) == 1:
            return outs[0]
        share_RGT = torch.stack(sums).softmax(0).to(q_GTK.dtype)
        return (share_RGT[..., None] * torch.stack(outs)).sum(0)

    def _round(
        self,
        q_GTK: Tensor,
        k_GTK: Tensor,
        v_GTK: Tensor,
        slot_GT: Tensor,
        code_RGT: Tensor,
        layout: Layout,
    ) -> tuple[Tensor, Tensor]:
        """Return what the last of the rounds given adds, and its log-sum-exp for every token."""
        blocks = _Blocks(slot_GT, layout)
        q, k, v = (blocks.sort(x) for x in (q_GTK, k_GTK, v_GTK))
        scores_GnCW = (q * q.shape[-1] ** -0.5) @ blocks.near(k).transpose(-1, -2)
        scores_GnCW = scores_GnCW.to(torch.promote_types(q.dtype, torch.float32))
        scores_GnCW.masked_fill_(blocks.hidden(code_RGT), NOTHING)
        if len(code_RGT) == 1:  # the first round finds every token itself
            scores_GnCW.masked_fill_(blocks.itself(), ITSELF)
        most_GnC1 = scores_GnCW.detach().amax(-1, keepdim=True)
        weights_GnCW = scores_GnCW.sub_(most_GnC1).exp_()
        sum_GnC1 = weights_GnCW.sum(-1, keepdim=True)
        weights_GnCW = drop(weights_GnCW, self.active_dropout, self.active_dropout > 0)
        out = (weights_GnCW.to(v.dtype) @ blocks.near(v)) / sum_GnC1.to(v.dtype)
        return blocks.restore(out), (most_GnC1 + sum_GnC1.log()).flatten(1).gather(1, slot_GT)


class _Blocks:
    """One round's sorted tokens in blocks: n blocks of C slots, each near W slots of keys."""

    def __init__(self, slot_GT: Tensor, layout: Layout) -> None:
        self.layout = layout
        self.slot_GT = slot_GT
        rows, length = slot_GT.shape
        token_T = torch.arange(length, device=slot_GT.device).expand(rows, -1)
        self.token_GN = slot_GT.new_full((rows, layout.slots), length)
        self.token_GN.scatter_(1, slot_GT, token_T)

    def sort(self, x_GTK: Tensor) -> Tensor:
        """Tokens to blocks, [G, n, C, K]; empty slots hold zeros."""
        return self._cut(_move(x_GTK, self.token_GN, self.slot_GT))

    def restore(self, x_GnCK: Tensor) -> Tensor:
        """Blocks to tokens, [G, T, K]."""
        return _move(x_GnCK.flatten(1, 2), self.slot_GT, self.token_GN)

    def near(self, x: Tensor, *, empty: int = 0) -> Tensor:
        """For every block, itself and the blocks before it: [G, n, C, ...] to [G, n, W, ...]."""
        count, back = x.shape[1], self.layout.back
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (back, 0), value=empty)
        return torch.cat([x[:, first : first + count] for first in range(back + 1)], dim=2)

    def hidden(self, code_RGT: Tensor) -> Tensor:
        """What the last round does not find, or one before it has found already: [G, n, C, W]."""
        *earlier, last = (self._found(code_GT) for code_GT in code_RGT)
        hidden = last.logical_not_()
        for found in earlier:
            hidden |= found
        return hidden

    def itself(self) -> Tensor:
        """Where a query meets its own key: one diagonal in every block, [C, W]."""
        block, back = self.layout.block, self.layout.back
        eye = torch.eye(block, dtype=torch.bool, device=self.slot_GT.device)
        return F.pad(eye, (back * block, 0))

    def _cut(self, x_GN: Tensor) -> Tensor:
        return x_GN.view(len(x_GN), -1, self.layout.block, *x_GN.shape[2:])

    def _found(self, code_GT: Tensor) -> Tensor:
        far = torch.iinfo(code_GT.dtype).min // 4
        code_GnC = self._cut(F.pad(code_GT, (0, 1), value=far).gather(1, self.token_GN))
        near_GnW = self.near(code_GnC, empty=far)
        return self.layout.found(code_GnC[..., :, None], near_GnW[..., None, :])


class _Move(torch.autograd.Function):
    """`_take` whose backward knows that no row goes to two places: a move too, not a sum."""

    @staticmethod
    def forward(ctx: Any, x_GTK: Tensor, source_GN: Tensor, back_GT: Tensor) -> Tensor:
        """Move rows."""
        ctx.save_for_backward(source_GN, back_GT)
        return _take(x_GTK, source_GN)

    @staticmethod
    def backward(ctx: Any, grad_GNK: Tensor) -> tuple[Tensor, None, None]:
        """Move gradients back."""
        source_GN, back_GT = ctx.saved_tensors
        return _move(grad_GNK, back_GT, source_GN), None, None


def _move(x_GTK: Tensor, source_GN: Tensor, back_GT: Tensor) -> Tensor:
    if torch.compiler.is_compiling():  # a compiler derives the backward, and warns of ours
        return _take(x_GTK, source_GN)
    moved_GNK: Tensor = _Move.apply(x_GTK, source_GN, back_GT)  # type: ignore[no-untyped-call]
    return moved_GNK


def _take(x_GTK: Tensor, source_GN: Tensor) -> Tensor:
    """Return for every place the row that `source` names; one past the end is a row of zeros."""
    rows, length, width = x_GTK.shape
    first_G1 = torch.arange(rows, device=x_GTK.device)[:, None] * (length + 1)
    flat = F.pad(x_GTK, (0, 0, 0, 1)).flatten(0, 1)
    return flat.index_select(0, (source_GN + first_G1).flatten()).view(rows, -1, width)


def _attend_chains(
    q_BHTK: Tensor, k_BHCK: Tensor, v_BHCK: Tensor, chain_BHRTS: Tensor, position_BT: Tensor
) -> Tensor:
    """Attend from each query to the tokens of its chains, each once, or else to itself."""
    batch, heads, tokens, width = q_BHTK.shape
    found_BHTW = chain_BHRTS.movedim(2, 3).flatten(3).sort(dim=-1).values
    keep_BHTW = found_BHTW > 0
    keep_BHTW[..., 1:] &= found_BHTW[..., 1:] != found_BHTW[..., :-1]
    itself_BHT1 = position_BT[:, None, :, None].expand(-1, heads, -1, -1)
    at_BHTW = torch.cat([(found_BHTW - 1).clamp(min=0), itself_BHT1], dim=-1)
    keep_BHTW = torch.cat([keep_BHTW, ~keep_BHTW.any(-1, keepdim=True)], dim=-1)
    row_B = torch.arange(batch, device=q_BHTK.device)[:, None, None, None]
    head_H = torch.arange(heads, device=q_BHTK.device)[:, None, None]
    out = attend(
        q_BHTK.reshape(-1, 1, 1, width),
        k_BHCK[row_B, head_H, at_BHTW].view(-1, 1, at_BHTW.shape[-1], width),
        v_BHCK[row_B, head_H, at_BHTW].view(-1, 1, at_BHTW.shape[-1], width),
        keep=keep_BHTW.reshape(-1, 1, 1, at_BHTW.shape[-1]),
    )
    return out.view(batch, heads, tokens, width)
