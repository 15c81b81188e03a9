"""Adaptive computation time (Graves, 2016, arXiv:1603.08983).

    p_n = sigmoid(w . s_n + b)                       after step n, s_n the state of a token
    N   = the first n with p_1 + ... + p_n >= threshold, or the last step
    R   = 1 - (p_1 + ... + p_{N-1})                  the remainder
    y   = p_1 s_1 + ... + p_{N-1} s_{N-1} + R s_N    the output
    ponder cost = mean of N + R over the tokens that are not padding

Halting: a shared layer (Universal Transformer, Dehghani et al., 2018, arXiv:1807.03819) runs on all
tokens at once, and each token halts on its own. Other tokens still attend to a halted one. Its
state and its position encodings stay those of step N + 1, so its keys and values are constant and
are not recomputed. Every step gathers the active tokens and computes only those. Padding counts as
halted from the start.

Pondering: a recurrent cell S, the GRU or the LSTM of `nn.layer.recurrent`, takes several steps per
token, one token after the other.

    s_t^1 = S(s_(t-1), [x_t; 1])        s_t^n = S(s_t^(n-1), [x_t; 0])        n = 2 ... N
    s_t   = p^1 s_t^1 + ... + p^(N-1) s_t^(N-1) + R s_t^N                     y_t = A h_t

p, N and R are computed from h; the state s is h, or h and c concatenated. Decoding keeps the mean
s_t. The flag marks the first step of a token. Graves averages the outputs of the steps, which is
the same, because A is linear and the weights sum to one. W x_t is computed once for all steps. Each
step computes only the rows that have not halted; padding is skipped.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.config import Config
from outrider.torch.nn.attention.base import AttentionBase
from outrider.torch.nn.cache import Cache, LayerCache, Step
from outrider.torch.nn.kernel.dense import attend
from outrider.torch.nn.layer.block import Block
from outrider.torch.nn.layer.heads import Source
from outrider.torch.nn.layer.recurrent import BothWays, Gru
from outrider.torch.nn.norm import Norm
from outrider.torch.nn.position import Positions
from outrider.torch.nn.position.coordinate import CoordinatePosition
from outrider.torch.nn.stack import SharedStack
from outrider.torch.nn.stack.pack import Pack


class HaltingConfig(Config):
    """Keys of `halting`."""

    threshold: float = Field(default=0.99, gt=0, le=1)
    """A token halts when its probabilities sum to this."""
    ponder: float = Field(default=0.01, ge=0)
    """Weight of the ponder cost in the loss."""
    bias: float = 1.0
    """Initial b: with larger values tokens halt earlier at the start of training."""


class Pondered(NamedTuple):
    """Steps and remainders of the tokens of a batch."""

    steps_BT: Tensor
    """N, 0 for padding."""
    remainder_BT: Tensor
    """R, 0 for padding."""

    def cost(self) -> Tensor:
        """Return the mean of N + R over the tokens that are not padding."""
        tokens = (self.steps_BT > 0).sum().clamp(min=1)
        return (self.steps_BT + self.remainder_BT).sum() / tokens


class Ponders:
    """Base of parts with adaptive computation; records the ponder cost."""

    pondered: Pondered | None = None
    """Result of the last whole pass."""
    _cost: Tensor | None = None

    def record(self, pondered: Pondered, price: float | None) -> None:
        """Store the result of a whole pass and, in training, its cost times `price`."""
        self.pondered = Pondered(*(part.detach() for part in pondered))
        if price is not None:
            self._cost = price * pondered.cost()

    def penalty(self) -> Tensor | None:
        """Return and clear the weighted ponder cost of the last training pass."""
        cost, self._cost = self._cost, None
        return cost


class Halting(nn.Module):
    """The halting probability of a token."""

    def __init__(self, width: int, config: HaltingConfig) -> None:
        super().__init__()
        self.config = config
        self.weight_D = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(()))

    def reset(self) -> None:
        """Initialise the weights."""
        bound = (6 / (len(self.weight_D) + 1)) ** 0.5
        nn.init.uniform_(self.weight_D, -bound, bound)
        nn.init.constant_(self.bias, self.config.bias)

    def forward(self, state_BAD: Tensor) -> Tensor:
        """Return p, in at least float32."""
        wide = torch.promote_types(state_BAD.dtype, torch.float32)
        return ((state_BAD.to(wide) * self.weight_D).sum(-1) + self.bias).sigmoid()


class StepWeight(NamedTuple):
    """The weight of one step in the output."""

    halts: Tensor
    """Whether the token halts at this step."""
    weight: Tensor
    remainder: Tensor
    """R if it halts, else 0."""


def weigh_step(p: Tensor, before: Tensor, *, threshold: float, last: bool) -> StepWeight:
    """Return the weight of a step with probability `p` after steps that sum to `before`."""
    halts, left = (before + p >= threshold) | last, 1 - before
    return StepWeight(halts, torch.where(halts, left, p), torch.where(halts, left, 0.0))


class HaltingStack(Ponders, SharedStack):
    """One layer, applied a learned number of times to each token."""

    def __init__(
        self,
        block: Block,
        steps: int,
        halting: Halting,
        *,
        norm: Norm | None,
        coordinate: CoordinatePosition | None = None,
    ) -> None:
        super().__init__(block, steps, norm=norm, coordinate=coordinate)
        self.halting = halting

    def forward(
        self,
        x_BTD: Tensor,
        positions: Positions,
        keep_BT: Tensor | None = None,
        sources: Sequence[Source | None] | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """Run a whole pass from position 0; `seen` collects the states after each step."""
        active_BT = torch.ones_like(x_BTD[..., 0], dtype=torch.bool) if keep_BT is None else keep_BT
        view = _View(self.blocks[0].attention.attention, keep_BT)
        source = (sources or [None])[0]
        tally = self._run_steps(x_BTD, positions, active_BT, source, view, seen)
        pondered = Pondered(tally.steps_BT, tally.remainder_BT)
        self.record(pondered, self.halting.config.ponder if self.training else None)
        return self._finish(tally, x_BTD)

    def extend(
        self,
        x_BTD: Tensor,
        caches: Sequence[Cache],
        step: Step,
        sources: Sequence[Source | None],
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """Append tokens to the caches; each step has its own cache."""
        active_BT = torch.ones_like(x_BTD[..., 0], dtype=torch.bool)
        view = _CachedView(self.blocks[0].attention.attention, caches, step)
        tally = self._run_steps(x_BTD, step.positions, active_BT, sources[0], view, seen)
        return self._finish(tally, x_BTD)

    def _run_steps(
        self,
        x_BTD: Tensor,
        positions: Positions,
        active_BT: Tensor,
        source: Source | None,
        view: "_View",
        seen: list[Tensor] | None,
    ) -> "_Tally":
        """Run steps until every token has halted.

        At the start of a step x_BAD holds the tokens changed by the previous step. All of them get
        new keys and values; those that are still active continue.
        """
        block, tally, states = self.blocks[0], _Tally(self.halting.config.threshold, x_BTD), x_BTD
        # Hooks that record attention weights need all tokens in place.
        shrink = not block.attention.attention._forward_pre_hooks
        pack, x_BAD, active_BA, layer = Pack.all(x_BTD), x_BTD, active_BT, 0
        while layer < self.steps:
            inner = Pack.of(active_BA, shrink=shrink)
            if not inner.tokens and not view.keeps_all_steps:
                break
            here = pack.positions(positions)
            x_BAD = self.locate(x_BAD, here, layer)
            q, k, v = block.attention.project(block.attention_residual.enter(x_BAD), here)
            view.renew(k.transpose(1, 2), v.transpose(1, 2), pack)
            if not inner.tokens:
                view.finish(layer)
                break
            pack, x_BAD = pack.through(inner), inner.gather(x_BAD)
            out = view.attend(layer, inner.gather(q.transpose(1, 2)), pack)
            x_BAD = block.run(x_BAD, partial(block.attention.merge, out), source)
            layer += 1
            p_BA = self.halting(x_BAD)
            active_BA = tally.add(x_BAD, p_BA, pack, inner, last=layer == self.steps)
            if seen is not None:
                states = pack.scatter(states, x_BAD)
                seen.append(states)
        if seen is not None:
            seen.extend([states] * (self.steps - layer))
        return tally

    def _finish(self, tally: "_Tally", like: Tensor) -> Tensor:
        y_BTD = tally.output_BTD.to(like.dtype)
        return y_BTD if self.norm is None else self.norm(y_BTD)


class _Tally:
    """Running sums of probabilities, outputs, steps and remainders."""

    def __init__(self, threshold: float, x_BTD: Tensor) -> None:
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        self.threshold = threshold
        self.output_BTD = torch.zeros_like(x_BTD, dtype=wide)
        self.steps_BT = torch.zeros_like(self.output_BTD[..., 0])
        self.remainder_BT = torch.zeros_like(self.steps_BT)
        self.total_BA = torch.zeros_like(self.steps_BT)

    def add(
        self, state_BAD: Tensor, p_BA: Tensor, pack: Pack, inner: Pack, *, last: bool
    ) -> Tensor:
        """Add one step of the packed tokens; return which of them continue."""
        before_BA = inner.gather(self.total_BA)
        self.total_BA = before_BA + p_BA
        weighed = weigh_step(p_BA, before_BA, threshold=self.threshold, last=last)
        self.output_BTD = pack.add(self.output_BTD, weighed.weight[..., None] * state_BAD)
        self.remainder_BT = pack.add(self.remainder_BT, weighed.remainder)
        self.steps_BT = pack.add(self.steps_BT, torch.ones_like(p_BA))
        return pack.active_BA & ~weighed.halts


class _View:
    """Keys and values that the tokens of a whole pass see, step by step."""

    keeps_all_steps = False
    """Later passes read the keys and values of all steps, so every step must have them."""

    def __init__(self, attention: AttentionBase, keep_BT: Tensor | None = None) -> None:
        self.attention = attention
        # Where causal, padding on the right is behind every real query.
        self.keep_BT = None if attention.causal else keep_BT
        self.k_BTGK = self.v_BTGK = torch.zeros(0)

    def renew(self, k_BAGK: Tensor, v_BAGK: Tensor, pack: Pack) -> None:
        """Replace the keys and values of the tokens that have changed."""
        self.k_BTGK = pack.scatter(self.k_BTGK, k_BAGK)
        self.v_BTGK = pack.scatter(self.v_BTGK, v_BAGK)

    def attend(self, layer: int, q_BAHK: Tensor, pack: Pack) -> Tensor:
        """Return the outputs of the packed queries, [B, H, A, K].

        Computes what has fewer pairs: these queries alone, or the attention's own whole pass.
        """
        length, pairs = pack.length, self.attention.cost(pack.length).pairs
        if pack.whole or pairs < pack.tokens * length:
            return self._attend_whole(q_BAHK, pack)
        k, v = self.k_BTGK.transpose(1, 2), self.v_BTGK.transpose(1, 2)
        keep = self._visible(pack, everything=pairs == length * length)
        dropout = self.attention.active_dropout
        return attend(q_BAHK.transpose(1, 2), k, v, keep=keep, dropout=dropout)

    def finish(self, layer: int) -> None:
        """Store the final keys and values for this step and all later ones."""

    def _attend_whole(self, q_BAHK: Tensor, pack: Pack) -> Tensor:
        q_BTHK = q_BAHK
        if not pack.whole:
            rows, _, heads, width = q_BAHK.shape
            q_BTHK = pack.scatter(q_BAHK.new_zeros(rows, pack.length, heads, width), q_BAHK)
        q, k, v = (x.transpose(1, 2) for x in (q_BTHK, self.k_BTGK, self.v_BTGK))
        out_BHTK = self.attention(q, k, v, keep_BT=self.keep_BT)
        return pack.gather(out_BHTK.transpose(1, 2)).transpose(1, 2)

    def _visible(self, pack: Pack, *, everything: bool) -> Tensor | None:
        keep_BT = self.keep_BT
        if everything:
            return None if keep_BT is None else keep_BT[:, None, None]
        key_T = torch.arange(pack.length, device=pack.place_BA.device)
        seen_BAT = self.attention.sees(pack.place_BA[..., None], key_T)
        return (seen_BAT if keep_BT is None else seen_BAT & keep_BT[:, None])[:, None]


class _CachedView(_View):
    """Cached keys and values, and those of the new tokens."""

    keeps_all_steps = True

    def __init__(self, attention: AttentionBase, caches: Sequence[Cache], step: Step) -> None:
        super().__init__(attention)
        self.caches = caches
        self.step = step

    def attend(self, layer: int, q_BAHK: Tensor, pack: Pack) -> Tensor:
        """Attend to the cache of this step."""
        k, v, keep = self._store(layer)
        if self.step.fresh:
            return super().attend(layer, q_BAHK, pack)
        if keep is not None and not pack.whole:
            keep = pack.gather(keep[:, 0].expand(len(q_BAHK), -1, -1))[:, None]
        return attend(q_BAHK.transpose(1, 2), k, v, keep=keep)

    def finish(self, layer: int) -> None:
        """Store the final keys and values for this step and all later ones."""
        for later in range(layer, len(self.caches)):
            self._store(later)

    def _store(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        cache, k, v = self.caches[layer], self.k_BTGK.transpose(1, 2), self.v_BTGK.transpose(1, 2)
        assert isinstance(cache, LayerCache)
        if self.step.fresh:
            cache.fill(k, v, self.step)
            return k, v, None
        slots = self.step.slots(self.attention, cache.size)
        return *cache.write(k, v, slots), slots.keep


STEP_LIMIT = 1 << 10
_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class PonderingConfig(HaltingConfig):
    """Keys of `pondering`."""

    steps: int = Field(default=8, ge=1, le=STEP_LIMIT)
    """Maximum steps per token."""


class PonderingGru(Ponders, Gru):
    """A GRU with several steps per token."""

    def __init__(self, width: int, config: PonderingConfig) -> None:
        super().__init__(width, flags=1)
        self.config = config
        self.halting = Halting(width, config)

    def forward(self, x_BTD: Tensor, positions: Positions, keep_BT: Tensor | None = None) -> Tensor:
        """Run a whole pass; `keep_BT` marks real tokens."""
        h_BTD, pondered = self._run_steps(x_BTD, None, keep_BT)
        self.record(pondered, self.config.ponder if self.training else None)
        return self.out(h_BTD)

    def _run(self, x_BTD: Tensor, before_BD: Tensor) -> Tensor:
        return self._run_steps(x_BTD, before_BD, None)[0]

    def _run_steps(
        self, x_BTD: Tensor, before_BD: Tensor | None, keep_BT: Tensor | None
    ) -> tuple[Tensor, Pondered]:
        dtype = self.out.weight.dtype
        with torch.autocast(x_BTD.device.type, enabled=False):
            before_BD = None if before_BD is None else before_BD.to(dtype)
            cell = _Cell.of(self.gru, self.halting, self.config)
            return cell.walk(x_BTD.to(dtype), before_BD, keep_BT)


class PonderingBothWays(Ponders, BothWays):
    """A bidirectional layer with several steps per token; the steps of both directions count."""

    def __init__(self, width: int, config: PonderingConfig, *, core: str) -> None:
        super().__init__(width, core=core, flags=1)
        self.config = config
        self.halting = Halting(width, config)
        self.halting_back = Halting(width, config)

    def forward(self, x_BTD: Tensor, positions: Positions, keep_BT: Tensor | None = None) -> Tensor:
        """Run a whole pass; `keep_BT` marks real tokens (right-padded rows)."""
        x_BTD, width = x_BTD.to(self.out.weight.dtype), x_BTD.shape[2]
        reversed_BT = _reversed_index(x_BTD, keep_BT)
        with torch.autocast(x_BTD.device.type, enabled=False):
            ahead = _Cell.of(self.states, self.halting, self.config)
            back = _Cell.of(self.states, self.halting_back, self.config, end="_reverse")
            state_BTS, forward = ahead.walk(x_BTD, None, keep_BT)
            back_BTS, backward = back.walk(_take(x_BTD, reversed_BT), None, keep_BT)
            back_BTD = _take(back_BTS, reversed_BT)[..., :width]
            h_BTE = torch.cat([state_BTS[..., :width], back_BTD], -1)
            y_BTD = self.out(h_BTE)
        both = (
            a_BT + b_BT.gather(1, reversed_BT) for a_BT, b_BT in zip(forward, backward, strict=True)
        )
        self.record(Pondered(*both), self.config.ponder if self.training else None)
        return y_BTD


class _Cell(NamedTuple):
    """The weights of one direction of a recurrent layer, and its halting unit."""

    input_GE: Tensor
    """W; its last column is for the flag."""
    state_GD: Tensor
    """U."""
    input_bias_G: Tensor
    state_bias_G: Tensor
    halting: Halting
    threshold: float
    steps: int

    @classmethod
    def of(
        cls, layer: nn.RNNBase, halting: Halting, config: PonderingConfig, *, end: str = ""
    ) -> "_Cell":
        """Select the weights of one direction of a layer."""
        w, u, b, d = (f"{name}_l0{end}" for name in _WEIGHTS)
        weights = (getattr(layer, w), getattr(layer, u), getattr(layer, b), getattr(layer, d))
        return cls(*weights, halting, config.threshold, config.steps)

    def walk(
        self, x_BTD: Tensor, before_BS: Tensor | None, keep_BT: Tensor | None
    ) -> tuple[Tensor, Pondered]:
        """Process the tokens in order; return the state after each."""
        given_BTG = F.linear(x_BTD, self.input_GE[:, :-1], self.input_bias_G)
        gates, width = self.state_GD.shape
        if before_BS is None:  # an LSTM has four gates and two state vectors
            before_BS = x_BTD.new_zeros(len(x_BTD), 2 * width if gates == 4 * width else width)
        state_BS, results = before_BS, []
        for t, given_BG in enumerate(given_BTG.unbind(1)):
            real_B = None if keep_BT is None else keep_BT[:, t]
            results.append(self.ponder(given_BG, state_BS, real_B))
            state_BS = results[-1][0]
        states, steps, remainders = (
            torch.stack(parts, dim=1) for parts in zip(*results, strict=True)
        )
        return states, Pondered(steps, remainders)

    def ponder(
        self, given_BG: Tensor, state_BS: Tensor, real_B: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the steps of one token of every row; return the mean state, N and R."""
        wide = torch.promote_types(state_BS.dtype, torch.float32)
        mean_BS = torch.zeros_like(state_BS, dtype=wide)
        steps_B = remainder_B = mean_BS[:, 0]
        row_A = torch.arange(len(state_BS), device=state_BS.device)
        if real_B is not None:
            row_A = real_B.nonzero()[:, 0]
            mean_BS = torch.where(real_B[:, None], mean_BS, state_BS)
        given_AG, state_AS = _rows(given_BG, row_A), _rows(state_BS, row_A)
        before_A = mean_BS.new_zeros(len(row_A))
        for step in range(self.steps if len(row_A) else 0):
            flag_G = self.input_GE[:, -1] if step == 0 else 0
            state_AS = self.step(given_AG + flag_G, state_AS)
            p_A = self.halting(state_AS[:, : self.state_GD.shape[1]])
            last = step == self.steps - 1
            weighed = weigh_step(p_A, before_A, threshold=self.threshold, last=last)
            mean_BS = _add(mean_BS, row_A, weighed.weight[:, None] * state_AS)
            remainder_B = _add(remainder_B, row_A, weighed.remainder)
            steps_B = _add(steps_B, row_A, torch.ones_like(p_A))
            active_C = (~weighed.halts).nonzero()[:, 0]
            if not len(active_C):
                break
            row_A, before_A = _rows(row_A, active_C), _rows(before_A + p_A, active_C)
            given_AG, state_AS = _rows(given_AG, active_C), _rows(state_AS, active_C)
        return mean_BS.to(state_BS.dtype), steps_B, remainder_B

    def step(self, given_AG: Tensor, state_AS: Tensor) -> Tensor:
        """Run the cell once; see `nn.layer.recurrent` for the equations."""
        width = self.state_GD.shape[1]
        h_AD = state_AS[:, :width]
        state_AG = F.linear(h_AD, self.state_GD, self.state_bias_G)
        if state_AS.shape[1] == width:
            r_given, z_given, n_given = given_AG.chunk(3, dim=-1)
            r_state, z_state, n_state = state_AG.chunk(3, dim=-1)
            n_AD = (n_given + (r_given + r_state).sigmoid() * n_state).tanh()
            return torch.lerp(n_AD, h_AD, (z_given + z_state).sigmoid())
        i_AD, f_AD, g_AD, o_AD = (given_AG + state_AG).chunk(4, dim=-1)
        c_AD = f_AD.sigmoid() * state_AS[:, width:] + i_AD.sigmoid() * g_AD.tanh()
        return torch.cat([o_AD.sigmoid() * c_AD.tanh(), c_AD], dim=-1)


def _rows(x_B: Tensor, row_A: Tensor) -> Tensor:
    """Select rows; `row_A` is sorted, so full length means all rows."""
    return x_B if len(row_A) == len(x_B) else x_B.index_select(0, row_A)


def _add(into_B: Tensor, row_A: Tensor, y_A: Tensor) -> Tensor:
    """Return `into_B` with `y_A` added to some rows."""
    return into_B + y_A if len(row_A) == len(into_B) else into_B.index_add(0, row_A, y_A)


def _reversed_index(x_BTD: Tensor, keep_BT: Tensor | None) -> Tensor:
    """Return the index of each token in its reversed row; padding stays at the end."""
    rows, tokens, _ = x_BTD.shape
    place_T = torch.arange(tokens, device=x_BTD.device)
    if keep_BT is None:
        return place_T.flip(0).expand(rows, -1)
    length_B1 = keep_BT.sum(1, keepdim=True)
    return torch.where(place_T < length_B1, length_B1 - 1 - place_T, place_T)


def _take(x_BTE: Tensor, place_BT: Tensor) -> Tensor:
    return x_BTE.gather(1, place_BT[..., None].expand_as(x_BTE))
