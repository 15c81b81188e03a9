"""The block drafter: a small model that drafts the next k tokens of a frozen target in one pass.

The input of slot 0 is the newest token, that of slots 1 to k - 1 a trained mask; slot i predicts
token i + 1 after the newest. All slots get the target's state t of the token before the newest. A
slot attends to the target's states before the block (as keys and values), to the slots before it,
and to the source: the encoder's output and, if the model has a CTC decoder, the states of that:

    x_i   = (newest token or mask) + slot i + L t
    h     = layers(slots, keys and values from the target's states, source)
    b_i   = head(h_i)                                     the target's head, all slots at once
    s_i   = tanh(A h_i + P e(y_{i-1}) + R s_{i-1})        a small state along the block
    z_i   = b_i + (head O) s_i                            for the C likeliest tokens of b_i only
    y_i   = argmax z_i,   or drawn from q_i = softmax(z_i / temperature)

Without s the slots are independent of the drafted tokens before them, and fewer tokens are
accepted. Attention within a block is causal, so one drafter serves every k. Slots with a known
token as input instead of the mask implement mask-predict with the same weights.

With `core: lstm` the layers have no keys from the target. An LSTM runs along the slots of a block,
started from t, and each slot gets the allocated input of its step (`nn.family.allocation`):

    x_i   = (newest token or mask) + slot i + code of the position + a_(p+i)      p: the newest's
    h     = layers(slots by an LSTM that starts at L t, source)

The tokens of a drafted block are selected one after the other:

    s_i = tanh(a_i + P e(y_{i-1}) + R s_{i-1})        a_i the input of the slot
    z_i = b_i + o_i s_i                               o_i a row per candidate, C candidates
    y_i = argmax z_i,   or drawn from softmax(z_i / temperature),   or the known token of slot i

The slots are sequential and cheap, so the overhead of torch calls dominates. For few rows on a CPU
the same steps run in numpy, which has less overhead.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.inverse_cdf import invert, masses
from outrider.torch.models.drafter.base import (
    DrafterBase,
    TrainingSlots,
    block_sizes,
    keys_and_values,
    lstm_of,
    run_block,
    training_mask,
)
from outrider.torch.models.state import DecoderState, Recent
from outrider.torch.nn.cache import LayerCache, Step
from outrider.torch.nn.dropout import dropout
from outrider.torch.nn.family.allocation import StepTable
from outrider.torch.nn.layer.heads import Source
from outrider.torch.nn.linear import product
from outrider.torch.nn.loss import IGNORED
from outrider.torch.nn.position import Positions

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


class BlockDraft(NamedTuple):
    """See `decoding.protocol.Draft`."""

    tokens_BK: Tensor
    ids_BKC: Tensor
    prob_BKC: Tensor
    confidence_BK: Tensor


class Drafter(DrafterBase):
    """Drafts for its target."""

    # Decoding, on the state of the target.

    def attach(
        self, state: DecoderState, memory_BSD: Tensor | None, keep_BS: Tensor | None
    ) -> None:
        """Attach to a new state."""
        state.drafter = self
        if not self.recurrent:
            state.drafter_caches = [
                block.attention.new_cache(state.rows, state.capacity) for block in self.blocks
            ]
        elif (table := self._allocate(memory_BSD, keep_BS)) is not None:
            state.drafter_caches = [table]
        state.drafter_sources = self._sources(*self.read(memory_BSD, keep_BS))

    def take_in(self, seen: Sequence[Tensor], state: DecoderState, step: Step) -> None:
        """Convert the target's states of new tokens to keys and values (`AttachedDrafter`)."""
        states_BTE = self._tapped(seen)
        state.recent = Recent(states_BTE, state.lengths, self._newest(state))
        if self.recurrent:
            return
        for block, inject, cache in zip(
            self.blocks, self.inject, state.drafter_caches, strict=True
        ):
            k, v = keys_and_values(block, inject, states_BTE, step.positions)
            assert isinstance(cache, LayerCache)
            if step.fresh:
                cache.fill(k, v, step)
            else:
                cache.write(k, v, step.slots(block.attention.attention, cache.size))

    @torch.inference_mode()
    def draft(
        self,
        last_B1: Tensor,
        state: DecoderState,
        tokens: Sequence[int],
        *,
        temperature: float = 1.0,
        uniform_BK: Tensor | None = None,
    ) -> BlockDraft:
        """Draft the tokens after `last_B1`; see `decoding.protocol.Drafts.draft`.

        All rows are computed for the largest count; surplus tokens have no meaning.
        """
        hidden_BKD = self._run_slots(last_B1, state, tokens)
        return self._choose(hidden_BKD, last_B1[:, 0], Choice(temperature, uniform_BK))

    @torch.inference_mode()
    def predict(
        self, last_B1: Tensor, state: DecoderState, known_BK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Predict a block in which some tokens are known: mask-predict.

        `known_BK` holds the token that follows slot i (its prediction), or -1. Returns the
        likeliest token of every slot given the known ones, and its probability. With allocated
        steps, slots after the last active one predict the end token.
        """
        slots = known_BK.shape[1]
        inputs_BK = F.pad(known_BK[:, :-1], (1, 0), value=-1)
        hidden_BKD = self._run_slots(last_B1, state, [slots] * state.rows, inputs_BK)
        draft = self._choose(hidden_BKD, last_B1[:, 0], Choice(known_BK=known_BK))
        chosen_BKC = draft.ids_BKC == draft.tokens_BK[..., None]
        prob_BK = (draft.prob_BKC * chosen_BKC).sum(-1)
        table = _table(state)
        if table is None:
            return draft.tokens_BK, prob_BK
        place_BK = state.length_B[:, None] + torch.arange(slots, device=last_B1.device)
        over_BK = (place_BK >= table.end_B[:, None]) & (known_BK < 0)
        eos = self.target.config.end_tokens[0]
        return draft.tokens_BK.masked_fill(over_BK, eos), prob_BK.masked_fill(over_BK, 1.0)

    def _run_slots(
        self,
        last_B1: Tensor,
        state: DecoderState,
        counts: Sequence[int],
        known_BK: Tensor | None = None,
    ) -> Tensor:
        """Run a block after the cached tokens; its keys and values are not kept."""
        slots = max(counts)
        step = state.step(slots, counts)
        rest_BKD = self.mask.expand(state.rows, slots - 1, -1)
        if known_BK is not None:
            rest_BK = known_BK[:, 1:]
            known_BKD = self._embed(rest_BK.clamp(min=0))
            rest_BKD = torch.where((rest_BK >= 0)[..., None], known_BKD, rest_BKD)
        slot_KD = self._slot_vectors(torch.arange(slots, device=last_B1.device))
        x_BKD = torch.cat([self._embed(last_B1), rest_BKD], dim=1) + slot_KD
        first_BKD = self.from_last(self._newest(state))[:, None].expand(-1, slots, -1)
        if self.recurrent:
            table = _table(state)
            return self._run_lstm(
                x_BKD if table is None else x_BKD + table.at(step.positions.index_BT),
                first_BKD,
                step.positions,
                state.drafter_sources,
                [slots],
            )
        x_BKD = self._locate(x_BKD + first_BKD, step.positions)
        layers = zip(self.blocks, state.drafter_caches, state.drafter_sources, strict=True)
        for block, cache, source in layers:
            x_BKD = block.extend(x_BKD, cache, step, source)
        hidden_BKD: Tensor = self.norm(x_BKD)
        return hidden_BKD

    def _newest(self, state: DecoderState) -> Tensor:
        """Return the target's state of each row's last token; zeros for empty rows."""
        if state.recent is None:
            return self.bias.new_zeros(state.rows, self.from_last.in_features)
        return state.recent.at_end(state.lengths)

    def _choose(self, hidden_BKD: Tensor, last_B: Tensor, choice: Choice) -> BlockDraft:
        """Select a token per slot, conditioned on those before it."""
        tables = self.tables()
        logits_BKV = product(hidden_BKD, tables.head_VD, tables.bias_V, tables.packed)
        count = min(self.config.candidates, logits_BKV.shape[-1])
        score_BKC, place_BKC = logits_BKV.float().topk(count)
        ids_BKC = place_BKC if self.kept_V is None else self.kept_V[place_BKC]
        candidates = Candidates(ids_BKC, score_BKC)
        if self.config.rank:
            inner_BKR, extra_BKCR = self.from_slot(hidden_BKD), tables.out_VR[place_BKC].float()
            steps = Steps(inner_BKR, extra_BKCR, tables.token_VR, tables.state_RR)
            tokens_BK, score_BKC, state_BKR = choose_in_order(candidates, steps, last_B, choice)
            hidden_BKD = torch.cat([hidden_BKD, state_BKR], dim=-1)
        else:
            tokens_BK = choose_all(candidates, choice)
        confidence_BK = self.confidence(hidden_BKD)[..., 0].float().sigmoid()
        mass_BKC = masses(score_BKC, choice.temperature)
        prob_BKC = (mass_BKC / mass_BKC.sum(-1, keepdim=True)).float()
        return BlockDraft(tokens_BK, ids_BKC, prob_BKC, confidence_BK)

    # Training, many blocks per row at once.

    def forward(self, objective: Callable[["Drafter"], Tensor]) -> Tensor:
        """Compute a loss within `forward`, as DDP requires."""
        return objective(self)

    def train_blocks(
        self,
        seen: Sequence[Tensor],
        inputs_BT: Tensor,
        slots: TrainingSlots,
        memory_BSD: Tensor | None = None,
        keep_BS: Tensor | None = None,
    ) -> Tensor:
        """Return the normed states h of all training slots, [B, N, D].

        Args:
            seen: Outputs of the target's layers for `inputs_BT`.
            inputs_BT: Inputs of its decoder, start token first.
            slots: The blocks to run.
            memory_BSD: Result of `read`.
            keep_BS: Its real positions; None without padding.
        """
        states_BTE = self._tapped(seen)
        place_BN = slots.anchor_BN + slots.index_N
        fed_BN = inputs_BT.gather(1, place_BN.clamp(max=inputs_BT.shape[1] - 1))
        x_BND = torch.where(slots.known_BN[..., None], self._embed(fed_BN), self.mask)
        x_BND = x_BND + self._slot_vectors(slots.index_N)
        before_BN1 = (slots.anchor_BN - 1)[..., None]
        index_BN1 = before_BN1.clamp(0, inputs_BT.shape[1] - 1)
        last_BNE = states_BTE.gather(1, index_BN1.expand(-1, -1, states_BTE.shape[2]))
        first_BND = self.from_last(last_BNE * (before_BN1 >= 0))
        end = inputs_BT.shape[1] + self.config.block
        here = Positions(place_BN.clamp(max=end - 1), end)
        sources = self._sources(memory_BSD, keep_BS)
        if self.recurrent:
            table = self._allocate(memory_BSD, keep_BS)
            x_BND = x_BND if table is None else x_BND + table.at(place_BN)
            return self._run_lstm(x_BND, first_BND, here, sources, block_sizes(slots))
        there = Positions.upto(inputs_BT.shape[1], inputs_BT.device)
        x_BND = x_BND + first_BND
        x_BND = dropout(self._locate(x_BND, here), self.config.dropout, self.training)
        keep = training_mask(slots, inputs_BT.shape[1])
        layers = zip(self.blocks, self.inject, sources, strict=True)
        for block, inject, source in layers:
            k, v = keys_and_values(block, inject, states_BTE, there)
            x_BND = run_block(block, x_BND, here, (k, v), keep, source)
        hidden_BND: Tensor = self.norm(x_BND)
        return hidden_BND

    def _run_lstm(
        self,
        x_BND: Tensor,
        first_BND: Tensor,
        positions: Positions,
        sources: Sequence[Source | None],
        sizes: Sequence[int],
    ) -> Tensor:
        """Run adjacent blocks of these sizes; `first_BND` holds a start per layer."""
        x_BND = dropout(self._locate(x_BND, positions), self.config.dropout, self.training)
        firsts = first_BND.chunk(len(self.blocks), dim=-1)
        for block, start_BND, source in zip(self.blocks, firsts, sources, strict=True):
            run = partial(lstm_of(block).run_blocks, first_BND=start_BND, sizes=sizes)
            x_BND = block.run(x_BND, run, source)
        hidden_BND: Tensor = self.norm(x_BND)
        return hidden_BND

    def run_state(self, hidden_MKD: Tensor, before_MK: Tensor) -> Tensor:
        """Return s of every slot, [M, K, R]; `before_MK` is the token before the predicted one."""
        slot_MKR = self.from_slot(hidden_MKD) + self.from_token(self._embed(before_MK))
        state_MR = slot_MKR.new_zeros(slot_MKR.shape[0], self.config.rank)
        states = []
        for inner_MR in slot_MKR.unbind(1):
            state_MR = torch.tanh(inner_MR + self.from_state(state_MR))
            states.append(state_MR)
        return torch.stack(states, dim=1)

    def logits(self, hidden: Tensor, state: Tensor | None = None) -> Tensor:
        """Score every token of the shortlist, or of the vocabulary without one."""
        if state is not None:
            hidden = hidden + self.to_token(state)
        return F.linear(hidden, *self._head())

    def listed(self, label: Tensor) -> Tensor:
        """Return each label's index in the shortlist, `IGNORED` if it is not listed."""
        if self.kept_V is None:
            return label
        place = torch.searchsorted(self.kept_V, label).clamp(max=len(self.kept_V) - 1)
        return torch.where(self.kept_V[place] == label, place, IGNORED)

    def confidence_logit(self, hidden: Tensor, state: Tensor | None) -> Tensor:
        """Return the logit of the acceptance probability; its gradient stops at the inputs."""
        parts = [hidden.detach()] if state is None else [hidden.detach(), state.detach()]
        out: Tensor = self.confidence(torch.cat(parts, dim=-1))[..., 0]
        return out


def _table(state: DecoderState) -> StepTable | None:
    """Return the step table of this state, if its drafter allocates steps."""
    for cache in state.drafter_caches:
        if isinstance(cache, StepTable):
            return cache
    return None
