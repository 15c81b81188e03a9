"""Adaptive computation time (Graves, 2016, arXiv:1603.08983), for every token on its own, around a
shared layer (Universal Transformer, Dehghani et al., 2018, arXiv:1807.03819).

    p_t = sigmoid(w . s_t + b)                       after step t, s_t the state of a token
    N   = the first t with p_1 + ... + p_t >= threshold, or the last step
    R   = 1 - (p_1 + ... + p_{N-1})                  the remainder
    y   = p_1 s_1 + ... + p_{N-1} s_{N-1} + R s_N    what the token gives
    ponder cost = mean of N + R over the tokens that are not padding

A token that has halted is still looked at. Its state is copied on, and its coordinates stay those
of step N + 1; so from then on its keys and values are constant and are never computed again. Every
step gathers the tokens that still think and computes them alone; when there is none, the rest of
the steps is left out. Padding counts as halted from the start.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from outrider.torch.nn.attention.base import AttentionBase
from outrider.torch.nn.cache import Cache, LayerCache, Step
from outrider.torch.nn.family.halting_unit import Halting, Pondered, Ponders, weigh
from outrider.torch.nn.kernel.dense import attend
from outrider.torch.nn.layer.block import Block
from outrider.torch.nn.layer.heads import Source
from outrider.torch.nn.norm import NormKind
from outrider.torch.nn.position import Positions
from outrider.torch.nn.position.coordinate import CoordinatePosition
from outrider.torch.nn.stack.depth import SharedStack
from outrider.torch.nn.stack.pack import Pack

__all__ = ["HaltingStack"]


class HaltingStack(Ponders, SharedStack):
    """One layer that every token goes through as often as it needs."""

    def __init__(
        self,
        block: Block,
        steps: int,
        halting: Halting,
        *,
        width: int,
        norm: str,
        coordinate: CoordinatePosition | None = None,
        kind: NormKind | None = None,
    ) -> None:
        super().__init__(block, steps, width=width, norm=norm, coordinate=coordinate, kind=kind)
        self.halting = halting

    def forward(
        self,
        x_BTD: Tensor,
        positions: Positions,
        keep_BT: Tensor | None = None,
        sources: Sequence[Source | None] | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """One whole pass from position 0; `seen` collects the states after each step."""
        active_BT = torch.ones_like(x_BTD[..., 0], dtype=torch.bool) if keep_BT is None else keep_BT
        view = _WholeView(self.blocks[0].attention.attention, keep_BT)
        source = (sources or [None])[0]
        tally = self._think(x_BTD, positions, active_BT, source, view, seen)
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
        """Append tokens to the caches; each step's cache holds what that step would look at."""
        active_BT = torch.ones_like(x_BTD[..., 0], dtype=torch.bool)
        view = _CachedView(self.blocks[0].attention.attention, caches, step)
        tally = self._think(x_BTD, step.positions, active_BT, sources[0], view, seen)
        return self._finish(tally, x_BTD)

    def _think(
        self,
        x_BTD: Tensor,
        positions: Positions,
        active_BT: Tensor,
        source: Source | None,
        view: "_View",
        seen: list[Tensor] | None,
    ) -> "_Tally":
        """Run steps until every token has halted.

        At the start of a step x_BAD holds the tokens that the step before has changed: all of them
        get new keys and values, those among them that are still active think on.
        """
        block, tally, states = self.blocks[0], _Tally(self.halting.config.threshold, x_BTD), x_BTD
        # Whoever listens to the attention, to draw its weights, is shown all tokens in their place.
        shrink = not block.attention.attention._forward_pre_hooks
        pack, x_BAD, active_BA, layer = Pack.all(x_BTD), x_BTD, active_BT, 0
        while layer < self.steps:
            inner = Pack.of(active_BA, shrink=shrink)
            if not inner.tokens and not view.remembers:
                break
            here = pack.positions(positions)
            x_BAD = self.locate(x_BAD, here, layer)
            q, k, v = block.attention.project(block.attention_residual.enter(x_BAD), here)
            view.renew(k.transpose(1, 2), v.transpose(1, 2), pack)
            if not inner.tokens:
                view.keep_on(layer)
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
    """What tokens have summed up: probabilities while they think, results where they stand."""

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
        """Count one step of the packed tokens; return which of them think on."""
        before_BA = inner.gather(self.total_BA)
        self.total_BA = before_BA + p_BA
        turn = weigh(p_BA, before_BA, threshold=self.threshold, last=last)
        self.output_BTD = pack.add(self.output_BTD, turn.weight[..., None] * state_BAD)
        self.remainder_BT = pack.add(self.remainder_BT, turn.remainder)
        self.steps_BT = pack.add(self.steps_BT, torch.ones_like(p_BA))
        return pack.active_BA & ~turn.halts


class _View:
    """What the tokens of a pass look at, step by step."""

    remembers = False
    """Later passes look at the keys and values of all steps, so no step may lack them."""

    def __init__(self, attention: AttentionBase) -> None:
        self.attention = attention
        self.k_BTGK = self.v_BTGK = torch.zeros(0)

    def renew(self, k_BAGK: Tensor, v_BAGK: Tensor, pack: Pack) -> None:
        """Replace the keys and values of the tokens that have changed."""
        self.k_BTGK = pack.scatter(self.k_BTGK, k_BAGK)
        self.v_BTGK = pack.scatter(self.v_BTGK, v_BAGK)

    def attend(self, layer: int, q_BAHK: Tensor, pack: Pack) -> Tensor:
        """Return what the packed queries find at one step, [B, H, A, K]."""
        raise NotImplementedError

    def keep_on(self, layer: int) -> None:
        """Nothing changes any more at this step and all after it."""
        raise NotImplementedError


class _WholeView(_View):
    """Each other, in one pass from position 0."""

    def __init__(self, attention: AttentionBase, keep_BT: Tensor | None = None) -> None:
        super().__init__(attention)
        # Where causal, padding on the right lies ahead of every real query.
        self.keep_BT = None if attention.causal else keep_BT

    def attend(self, layer: int, q_BAHK: Tensor, pack: Pack) -> Tensor:
        """Compute whatever has fewer pairs: the queries alone, or the kind's own whole pass."""
        length, pairs = pack.length, self.attention.cost(pack.length).pairs
        if pack.whole or pairs < pack.tokens * length:
            return self._all_ask(q_BAHK, pack)
        k, v = self.k_BTGK.transpose(1, 2), self.v_BTGK.transpose(1, 2)
        keep = self._visible(pack, everything=pairs == length * length)
        dropout = self.attention.active_dropout
        return attend(q_BAHK.transpose(1, 2), k, v, keep=keep, dropout=dropout)

    def _all_ask(self, q_BAHK: Tensor, pack: Pack) -> Tensor:
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


class _CachedView(_WholeView):
    """What the caches hold, and each other."""

    remembers = True

    def __init__(self, attention: AttentionBase, caches: Sequence[Cache], step: Step) -> None:
        super().__init__(attention)
        self.caches = caches
        self.step = step

    def attend(self, layer: int, q_BAHK: Tensor, pack: Pack) -> Tensor:
        """Attend to what the cache of this step holds."""
        k, v, keep = self._store(layer)
        if self.step.fresh:
            return super().attend(layer, q_BAHK, pack)
        if keep is not None and not pack.whole:
            keep = pack.gather(keep[:, 0].expand(len(q_BAHK), -1, -1))[:, None]
        return attend(q_BAHK.transpose(1, 2), k, v, keep=keep)

    def keep_on(self, layer: int) -> None:
        """Store what was last computed in the caches of this step and all after it."""
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
