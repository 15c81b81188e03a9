"""The block drafter: a small model that guesses the next k tokens of a frozen target in one pass.

Slot 0 is the newest token, slots 1 to k - 1 are a trained mask; slot i guesses token i + 1 after
the newest. All slots are given the target's state t of the token before the newest. A slot sees the
target's states of everything before the block (as keys and values), the slots before it, and the
source: the encoder's output and, where the model has a CTC decoder, what that makes of it, which is
a whole translation already:

    x_i   = (newest token or mask) + slot i + L t
    h     = layers(slots, keys and values from the target's states, source)
    b_i   = head(h_i)                                     the target's own head: all slots at once
    s_i   = tanh(A h_i + P e(y_{i-1}) + R s_{i-1})        one small state along the block
    z_i   = b_i + (head O) s_i                            on the C likeliest tokens of b_i only
    y_i   = argmax z_i,   or drawn from q_i = softmax(z_i / temperature)

Without s the slots cannot know what was drafted before them, and blocks break off early. In-block
attention is causal, so one drafter serves every k; a slot that is told its token instead of the
mask makes mask-predict out of the same weights.

With `core: lstm` the layers look back at nothing. An LSTM runs along the slots of a block, started
from t, and each slot is given what the source has for its place in the text (`nn.allocation`):

    x_i   = (newest token or mask) + slot i + code of the position + a_(p+i)      p: the newest's
    h     = layers(slots by an LSTM that starts at L t, source)
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, Self, cast

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers import initialization as init

from outrider.errors import ConfigError, ModelError
from outrider.models.base import build_block, init_weights
from outrider.models.config import (
    IN_ATTENTION,
    LAYER_LIMIT,
    POSITIONS,
    LanguageModelConfig,
    Seq2SeqConfig,
)
from outrider.models.language_model import LanguageModel
from outrider.models.rider import RiderConfig, check_choice, check_fits
from outrider.models.seq2seq import Seq2Seq
from outrider.models.state import DecoderState, Recent
from outrider.models.walk import Candidates, Choice, Steps, choose_all, walk
from outrider.nn.allocation import StepAllocation, StepTable
from outrider.nn.attention import HeadShape, build_attention
from outrider.nn.cache import LayerCache, Step
from outrider.nn.draw import masses
from outrider.nn.dropout import dropout
from outrider.nn.kernel.dense import attend
from outrider.nn.layer.block import Block
from outrider.nn.layer.heads import SelfAttention, Source
from outrider.nn.layer.recurrent import SlotLstm
from outrider.nn.linear import Linear, pack, packable, product
from outrider.nn.loss import IGNORED
from outrider.nn.position import Positions, Rotary

__all__ = ["BlockDraft", "Drafter", "DrafterConfig", "Slots", "Tables"]

Target = Seq2Seq | LanguageModel
CORES = ("transformer", "lstm")
READS = ("encoder", "ctc")
WHOLE_LIMIT = 1 << 20


@strict
class DrafterConfig(RiderConfig):
    """A drafter: its own layer, and how it is trained."""

    model_type = "outrider_drafter"
    given = ("vocab_size", "hidden_size", "position", "cross", "target_layers")
    ranges = {  # noqa: RUF012 - a class variable of a Hugging Face dataclass
        "block": (1, 1024),
        "rank": (0, 1 << 14),
        "candidates": (1, 1 << 14),
        "anchors": (1, 1 << 14),
        "target_layers": (1, LAYER_LIMIT),
    }

    target_layers: int = 6
    """Layers of the target's decoder."""
    position: str = "sinusoidal"
    """The target's kind of positions."""
    cross: bool = True
    """Reads the source: the target is an encoder-decoder."""
    core: str = "transformer"
    """What a slot knows of the text: `transformer` sees the target's states of all tokens, `lstm`
    runs along the block from the newest one."""
    reads: str = "encoder"
    """What it reads of the source: `encoder`, or `ctc` for the target's CTC decoder as well."""
    layers: int = 1
    """One is best on a CPU, two to four on a GPU."""
    taps: list[int] | None = None
    """Layers of the target whose states are injected; by default one in the middle and the last."""
    block: int = 16
    """Longest draft."""
    rank: int = 128
    """Width of the state that runs along the drafted tokens; 0 for independent slots, which is the
    default with `core: lstm`."""
    candidates: int = 16
    """Tokens of a slot that are rescored, and all that q can give."""
    shortlist: int = 0
    """Draft from so many of the commonest tokens only (the text stays exact); 0 for all."""
    anchors: int = 4
    """Training: blocks cut from every row."""
    train_block: int = 8
    """Training: slots of each of these blocks."""
    decay: float | int = 0.9
    """Training: weight of slot i + 1 over that of slot i."""
    whole: bool = True
    """Training: one more block over the whole target with random tokens told (mask-predict)."""

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_choice("position", self.position, POSITIONS)
        check_choice("core", self.core, CORES)
        check_choice("reads", self.reads, READS)
        if self.reads == "ctc" and self.core == "lstm":
            raise ConfigError("reads", "an lstm reads the encoder alone; leave it out")
        if self.reads == "ctc" and not self.cross:
            raise ConfigError("reads", "a language model has no CTC decoder; leave it out")
        if not 1 <= self.train_block <= self.block:
            raise ConfigError("train_block", f"got {self.train_block}, expected 1 to {self.block}")
        if not 0 < self.decay <= 1:
            raise ConfigError("decay", f"got {self.decay}, expected above 0, at most 1")
        if not 0 <= self.shortlist <= self.vocab_size:
            raise ConfigError("shortlist", f"got {self.shortlist}, expected 0 to {self.vocab_size}")
        last = self.target_layers - 1
        if self.taps is None:
            self.taps = sorted({max(0, last // 2), last})
        if not self.taps or not all(0 <= tap <= last for tap in self.taps):
            raise ConfigError("taps", f"got {self.taps}, expected layers from 0 to {last}")

    @property
    def longest_text(self) -> int:
        """Most tokens that it can write as one block: any number if trained on whole texts."""
        return WHOLE_LIMIT if self.whole else self.block

    @classmethod
    def for_target(
        cls, target: Seq2SeqConfig | LanguageModelConfig, **values: Any
    ) -> "DrafterConfig":
        """Take from the target what must agree with it, and its layer's shape as the default."""
        cross = isinstance(target, Seq2SeqConfig)
        theirs = {"target_layers": _layers(target), "position": target.position, "cross": cross}
        usual: dict[str, Any] = {"whole": cross}
        if values.get("core") == "lstm":
            usual["rank"] = 0  # it stands for what is guessed without looking at any guess
        return cls(**{**usual, **cls.from_target(target, values), **theirs})


class Slots(NamedTuple):
    """Training slots of a batch, laid out side by side: N slots a row, in blocks."""

    anchor_BN: Tensor
    """Position of the newest token of each slot's block."""
    index_N: Tensor
    """Place of the slot in its block."""
    block_N: Tensor
    """Which block it belongs to."""
    told_BN: Tensor
    """Whether the slot is told its token instead of the mask; always true for index 0."""


class BlockDraft(NamedTuple):
    """See `decoding.protocol.Draft`."""

    tokens_BK: Tensor
    ids_BKC: Tensor
    prob_BKC: Tensor
    confidence_BK: Tensor


class Ahead(Protocol):
    """A parallel decoder that has read the source before the drafter does: see `models.ctc`."""

    def states(self, memory_BSD: Tensor, keep_BS: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return its states of all slots, and which of them are real."""
        ...


class Tables(NamedTuple):
    """What choosing tokens needs, in one piece."""

    head_VD: Tensor
    bias_V: Tensor
    packed: Tensor | None
    out_VR: Tensor
    """head O: what the state adds to each token's score."""
    token_VR: Tensor
    """P e(y) of every token."""
    state_RR: Tensor


class Drafter(PreTrainedModel):
    """Drafts for the target it is bound to; the target's weights are not its own."""

    config_class = DrafterConfig
    config: DrafterConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _supports_sdpa = True
    kept_V: Tensor | None
    """The shortlist: tokens that may be drafted, in order; None for all."""
    _tables: Tables | None = None

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        width, rank = config.hidden_size, config.rank
        assert config.taps is not None
        self.mask = nn.Parameter(torch.zeros(width))
        self.slot = nn.Embedding(config.block, width)
        self.blocks: Sequence[Block] = nn.ModuleList(  # type: ignore[assignment]
            _build_layer(config) for _ in range(config.layers)
        )
        self.state_norms: Sequence[nn.LayerNorm] = nn.ModuleList(  # type: ignore[assignment]
            nn.LayerNorm(width) for _ in config.taps
        )
        self.recurrent = config.core == "lstm"
        self.inject: Sequence[Linear] = nn.ModuleList(  # type: ignore[assignment]
            Linear(width * len(config.taps), 2 * width)
            for _ in range(0 if self.recurrent else config.layers)
        )
        starts = config.layers if self.recurrent else 1
        self.from_last = Linear(width * len(config.taps), width * starts)
        self.allocation = StepAllocation(width) if self.recurrent and config.cross else None
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.confidence = nn.Linear(width + rank, 1)
        if rank:
            self.from_slot = nn.Linear(width, rank)
            self.from_token = nn.Linear(width, rank, bias=False)
            self.from_state = nn.Linear(rank, rank, bias=False)
            self.to_token = nn.Linear(rank, width, bias=False)
        kept_V = torch.arange(config.shortlist) if config.shortlist else None
        self.register_buffer("kept_V", kept_V)
        self._target: list[Target] = []  # in a list, so that its weights are not ours
        self._ahead: list[Ahead] = []
        self.post_init()

    @property
    def target(self) -> Target:
        """The model it drafts for."""
        if not self._target:
            raise ModelError("this drafter has no target yet; bind it to one")
        return self._target[0]

    def bind(self, target: Target, ahead: Ahead | None = None) -> Self:
        """Draft for `target`, whose weights will not change; `ahead` is its CTC decoder."""
        config, theirs = self.config, target.config
        expected = {
            "vocab_size": theirs.vocab_size,
            "hidden_size": theirs.hidden_size,
            "position": theirs.position,
            "target_layers": _layers(theirs),
            "cross": isinstance(target, Seq2Seq),
        }
        check_fits("drafter", config, expected)
        self._check_shortlist()
        if config.reads == "ctc":
            if ahead is None:
                raise ModelError("the drafter reads a CTC decoder, and this model has none")
            self._ahead = [ahead]
        self._target = [target]
        self._tables = None
        return self

    def _check_shortlist(self) -> None:
        kept_V, words = self.kept_V, self.config.vocab_size
        if kept_V is None:
            return
        in_order = bool((kept_V[1:] > kept_V[:-1]).all())
        if not in_order or int(kept_V[0]) < 0 or int(kept_V[-1]) >= words:
            raise ModelError(
                f"kept_V, the drafter's shortlist, must hold token ids from 0 to {words - 1}, in "
                "order and each once"
            )

    def place_target(self) -> None:
        """Bring what it is bound to where it is itself, switched to inference."""
        for part in [*self._target, *self._ahead]:
            if isinstance(part, nn.Module):
                part.to(self.device).eval()

    def read(
        self, memory_BSD: Tensor | None, keep_BS: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return what cross-attention looks at, and which of it is real."""
        if memory_BSD is None or not self._ahead:
            return memory_BSD, keep_BS
        ahead_BUD, keep_BU = self._ahead[0].states(memory_BSD, keep_BS)
        if keep_BS is not None and keep_BU is not None:
            keep_BS = torch.cat([keep_BS, keep_BU], dim=1)
        return torch.cat([memory_BSD, ahead_BUD.to(memory_BSD.dtype)], dim=1), keep_BS

    def train(self, mode: bool = True) -> Self:
        """Weights may have changed whenever training starts or ends."""
        self._tables = None
        return super().train(mode)

    def set_shortlist(self, ids_N: Tensor) -> None:
        """Choose the tokens that may be drafted."""
        if len(ids_N) != self.config.shortlist:
            raise ValueError(f"{len(ids_N)} tokens for a shortlist of {self.config.shortlist}")
        self.kept_V = ids_N.to(self.bias.device, torch.long).sort().values
        self._tables = None

    # Riding along while the target decodes.

    def ride(self, state: DecoderState, memory_BSD: Tensor | None, keep_BS: Tensor | None) -> None:
        """Take part in a state that has just been opened."""
        state.rider = self
        if not self.recurrent:
            state.rider_caches = [
                block.attention.new_cache(state.rows, state.capacity) for block in self.blocks
            ]
        elif (table := self._allocate(memory_BSD, keep_BS)) is not None:
            state.rider_caches = [table]
        state.rider_sources = self._sources(*self.read(memory_BSD, keep_BS))

    def take_in(self, seen: Sequence[Tensor], state: DecoderState, step: Step) -> None:
        """Turn the target's states of new tokens into keys and values; see `models.state.Rider`."""
        states_BTE = self._tapped(seen)
        state.recent = Recent(states_BTE, state.lengths, self._newest(state))
        if self.recurrent:
            return
        for block, inject, cache in zip(self.blocks, self.inject, state.rider_caches, strict=True):
            k, v = _keys_and_values(block, inject, states_BTE, step.positions)
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
        tokens: int,
        *,
        temperature: float = 1.0,
        uniform_BK: Tensor | None = None,
    ) -> BlockDraft:
        """Guess the tokens after `last_B1`; see `decoding.protocol.Backend.draft`."""
        hidden_BKD = self._run_slots(last_B1, state, tokens)
        return self._choose(hidden_BKD, last_B1[:, 0], Choice(temperature, uniform_BK))

    @torch.inference_mode()
    def predict(
        self, last_B1: Tensor, state: DecoderState, told_BK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Guess a whole block of which some tokens are known: mask-predict.

        `told_BK` holds the token that follows slot i (the one slot i guesses), or -1. Returns the
        likeliest token of every slot, given that the told ones stand, and its probability. Where
        steps are allocated, slots behind the last one that takes part say the end token.
        """
        slots = told_BK.shape[1]
        inputs_BK = F.pad(told_BK[:, :-1], (1, 0), value=-1)
        hidden_BKD = self._run_slots(last_B1, state, slots, inputs_BK)
        found = self._choose(hidden_BKD, last_B1[:, 0], Choice(told_BK=told_BK))
        chosen_BKC = found.ids_BKC == found.tokens_BK[..., None]
        prob_BK = (found.prob_BKC * chosen_BKC).sum(-1)
        table = _table(state)
        if table is None:
            return found.tokens_BK, prob_BK
        place_BK = state.length_B[:, None] + torch.arange(slots, device=last_B1.device)
        over_BK = (place_BK >= table.end_B[:, None]) & (told_BK < 0)
        eos = self.target.config.end_tokens[0]
        return found.tokens_BK.masked_fill(over_BK, eos), prob_BK.masked_fill(over_BK, 1.0)

    def pack_weights(self) -> None:
        """Trade memory for speed on a CPU; only for a drafter that is not trained any more."""
        if packable(self.bias):
            for module in self.modules():
                if isinstance(module, Linear):
                    module.pack_weight()

    def _run_slots(
        self, last_B1: Tensor, state: DecoderState, slots: int, told_BK: Tensor | None = None
    ) -> Tensor:
        """Run a block behind what the state holds; its keys and values do not stay."""
        step = state.step(slots, [slots] * state.rows)
        rest_BKD = self.mask.expand(state.rows, slots - 1, -1)
        if told_BK is not None:
            rest_BK = told_BK[:, 1:]
            told_BKD = self._embed(rest_BK.clamp(min=0))
            rest_BKD = torch.where((rest_BK >= 0)[..., None], told_BKD, rest_BKD)
        slot_KD = self._slot_vectors(torch.arange(slots, device=last_B1.device))
        x_BKD = torch.cat([self._embed(last_B1), rest_BKD], dim=1) + slot_KD
        first_BKD = self.from_last(self._newest(state))[:, None].expand(-1, slots, -1)
        if self.recurrent:
            table = _table(state)
            return self._run_lstm(
                x_BKD if table is None else x_BKD + table.at(step.positions.index_BT),
                first_BKD,
                step.positions,
                state.rider_sources,
                [slots],
            )
        x_BKD = self._locate(x_BKD + first_BKD, step.positions)
        layers = zip(self.blocks, state.rider_caches, state.rider_sources, strict=True)
        for block, cache, source in layers:
            x_BKD = block.extend(x_BKD, cache, step, source)
        hidden_BKD: Tensor = self.norm(x_BKD)
        return hidden_BKD

    def _newest(self, state: DecoderState) -> Tensor:
        """Return the target's state of each row's newest token; nothing before the first."""
        if state.recent is None:
            return self.bias.new_zeros(state.rows, self.from_last.in_features)
        return state.recent.at_end(state.lengths)

    def _choose(self, hidden_BKD: Tensor, last_B: Tensor, choice: Choice) -> BlockDraft:
        """Let every slot choose among its candidates with the tokens before it in mind."""
        tables = self.tables()
        logits_BKV = product(hidden_BKD, tables.head_VD, tables.bias_V, tables.packed)
        count = min(self.config.candidates, logits_BKV.shape[-1])
        score_BKC, place_BKC = logits_BKV.float().topk(count)
        ids_BKC = place_BKC if self.kept_V is None else self.kept_V[place_BKC]
        candidates = Candidates(ids_BKC, score_BKC)
        if self.config.rank:
            inner_BKR, extra_BKCR = self.from_slot(hidden_BKD), tables.out_VR[place_BKC].float()
            steps = Steps(inner_BKR, extra_BKCR, tables.token_VR, tables.state_RR)
            tokens_BK, score_BKC, state_BKR = walk(candidates, steps, last_B, choice)
            hidden_BKD = torch.cat([hidden_BKD, state_BKR], dim=-1)
        else:
            tokens_BK = choose_all(candidates, choice)
        confidence_BK = self.confidence(hidden_BKD)[..., 0].float().sigmoid()
        mass_BKC = masses(score_BKC, choice.temperature)
        prob_BKC = (mass_BKC / mass_BKC.sum(-1, keepdim=True)).float()
        return BlockDraft(tokens_BK, ids_BKC, prob_BKC, confidence_BK)

    # Training: many blocks of a row at once.

    def forward(self, objective: Callable[["Drafter"], Tensor]) -> Tensor:
        """Compute a loss from inside `forward`, the one place where DDP listens."""
        return objective(self)

    def train_blocks(
        self,
        seen: Sequence[Tensor],
        inputs_BT: Tensor,
        slots: Slots,
        memory_BSD: Tensor | None = None,
        keep_BS: Tensor | None = None,
    ) -> Tensor:
        """Return the states h of all training slots, [B, N, D], normed.

        Args:
            seen: What every layer of the target gave for `inputs_BT`.
            inputs_BT: The tokens its decoder was fed, start token first.
            slots: Which blocks to run.
            memory_BSD: What `read` returned.
            keep_BS: Its real positions; None where all are.
        """
        states_BTE = self._tapped(seen)
        place_BN = slots.anchor_BN + slots.index_N
        fed_BN = inputs_BT.gather(1, place_BN.clamp(max=inputs_BT.shape[1] - 1))
        x_BND = torch.where(slots.told_BN[..., None], self._embed(fed_BN), self.mask)
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
            return self._run_lstm(x_BND, first_BND, here, sources, _block_sizes(slots))
        there = Positions.upto(inputs_BT.shape[1], inputs_BT.device)
        x_BND = x_BND + first_BND
        x_BND = dropout(self._locate(x_BND, here), self.config.dropout, self.training)
        keep = _training_mask(slots, inputs_BT.shape[1])
        layers = zip(self.blocks, self.inject, sources, strict=True)
        for block, inject, source in layers:
            k, v = _keys_and_values(block, inject, states_BTE, there)
            x_BND = _run_block(block, x_BND, here, (k, v), keep, source)
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
        """Run blocks of these sizes that lie side by side; `first_BND` holds a start per layer."""
        x_BND = dropout(self._locate(x_BND, positions), self.config.dropout, self.training)
        firsts = first_BND.chunk(len(self.blocks), dim=-1)
        for block, start_BND, source in zip(self.blocks, firsts, sources, strict=True):
            run = partial(_lstm(block).run_blocks, first_BND=start_BND, sizes=sizes)
            x_BND = block.run(x_BND, run, source)
        hidden_BND: Tensor = self.norm(x_BND)
        return hidden_BND

    def _allocate(self, memory_BSD: Tensor | None, keep_BS: Tensor | None) -> StepTable | None:
        """Spread the source over the steps of the text, where this drafter does so."""
        if self.allocation is None:
            return None
        assert memory_BSD is not None, "steps are allocated from a source"
        table: StepTable = self.allocation(memory_BSD, keep_BS)
        return table

    def run_state(self, hidden_MKD: Tensor, before_MK: Tensor) -> Tensor:
        """Return s of every slot, [M, K, R]; `before_MK` is the token before the one guessed."""
        slot_MKR = self.from_slot(hidden_MKD) + self.from_token(self._embed(before_MK))
        state_MR = slot_MKR.new_zeros(slot_MKR.shape[0], self.config.rank)
        states = []
        for inner_MR in slot_MKR.unbind(1):
            state_MR = torch.tanh(inner_MR + self.from_state(state_MR))
            states.append(state_MR)
        return torch.stack(states, dim=1)

    def logits(self, hidden: Tensor, state: Tensor | None = None) -> Tensor:
        """Score every word of the shortlist, or of the vocabulary where there is none."""
        if state is not None:
            hidden = hidden + self.to_token(state)
        return F.linear(hidden, *self._head())

    def listed(self, label: Tensor) -> Tensor:
        """Return each label's place on the shortlist, `IGNORED` where it has none."""
        if self.kept_V is None:
            return label
        place = torch.searchsorted(self.kept_V, label).clamp(max=len(self.kept_V) - 1)
        return torch.where(self.kept_V[place] == label, place, IGNORED)

    def judge(self, hidden: Tensor, state: Tensor | None) -> Tensor:
        """Logit of the chance that the guess is right; trains nothing but itself."""
        parts = [hidden.detach()] if state is None else [hidden.detach(), state.detach()]
        out: Tensor = self.confidence(torch.cat(parts, dim=-1))[..., 0]
        return out

    def _head(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the words that may be drafted."""
        head_VD, theirs = self.target.head_weight, self.target.logits_bias
        bias_V = self.bias if theirs is None else self.bias + theirs
        return (
            (head_VD, bias_V)
            if self.kept_V is None
            else (head_VD[self.kept_V], bias_V[self.kept_V])
        )

    def tables(self) -> Tables:
        """Matrices that follow from the frozen weights, multiplied out once."""
        if self._tables is None:
            head_VD, bias_V = self._head()
            out_VR = token_VR = state_RR = head_VD.new_zeros(0)
            if self.config.rank:
                out_VR = head_VD @ self.to_token.weight
                scale = self.target.config.embedding_scale
                token_VR = self.from_token(self.target.tokens.weight * scale)
                state_RR = self.from_state.weight.detach().T.contiguous()
            packed = pack(head_VD) if packable(head_VD) else None
            self._tables = Tables(head_VD, bias_V, packed, out_VR, token_VR, state_RR)
        return self._tables

    def _tapped(self, seen: Sequence[Tensor]) -> Tensor:
        assert self.config.taps is not None
        taps = zip(self.state_norms, self.config.taps, strict=True)
        return torch.cat([norm(seen[tap]) for norm, tap in taps], dim=-1)

    def _embed(self, ids: Tensor) -> Tensor:
        return self.target.tokens(ids) * self.target.config.embedding_scale

    def _slot_vectors(self, index: Tensor) -> Tensor:
        out: Tensor = self.slot(index.clamp(max=self.config.block - 1))
        return out

    def _locate(self, x_BTD: Tensor, positions: Positions) -> Tensor:
        position = self.target.decoder_position
        return x_BTD if position is None else position(x_BTD, positions)

    def _sources(self, memory_BSD: Tensor | None, keep_BS: Tensor | None) -> list[Source | None]:
        if memory_BSD is None:
            return [None] * len(self.blocks)
        crosses = [block.cross for block in self.blocks]
        return [None if one is None else one.source(memory_BSD, keep_BS) for one in crosses]

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=0.02)
        elif isinstance(module, Drafter):
            init.normal_(module.mask, std=0.02)
            init.zeros_(module.bias)
        else:
            init_weights(module)


def _layers(config: Seq2SeqConfig | LanguageModelConfig) -> int:
    return config.decoder_layers if isinstance(config, Seq2SeqConfig) else config.layers


def _build_layer(config: DrafterConfig) -> Block:
    width, heads = config.hidden_size, config.num_attention_heads
    if config.core == "lstm":
        # `_lstm` takes it out again: a layer is run with whatever stands in this place.
        return build_block(config, cast(SelfAttention, SlotLstm(width)), cross=config.cross)
    shape = HeadShape(heads, heads, width // heads)
    attention = SelfAttention(
        width,
        heads,
        build_attention({"kind": "causal"}, causal=True, shape=shape, key="drafter"),
        # The target's embeddings say nothing of positions, so this layer turns its keys.
        rotary=Rotary(width // heads) if config.position in IN_ATTENTION else None,
    )
    return build_block(config, attention, cross=config.cross)


def _lstm(block: Block) -> SlotLstm:
    return cast(SlotLstm, block.attention)


def _table(state: DecoderState) -> StepTable | None:
    """Return what the source gives to every step, where the drafter of this state asks for it."""
    for cache in state.rider_caches:
        if isinstance(cache, StepTable):
            return cache
    return None


def _block_sizes(slots: Slots) -> list[int]:
    """Count the slots of each block, in order."""
    sizes: list[int] = torch.unique_consecutive(slots.block_N, return_counts=True)[1].tolist()
    return sizes


def _keys_and_values(
    block: Block, inject: Linear, states_BTE: Tensor, positions: Positions
) -> tuple[Tensor, Tensor]:
    """Project the target's states for one layer of the drafter."""
    attention = block.attention
    kv = inject(states_BTE).unflatten(-1, (-1, attention.head_width)).transpose(1, 2)
    k, v = kv.chunk(2, dim=1)
    return (k if attention.rotary is None else attention.rotary(k, positions)), v


def _run_block(
    block: Block,
    x_BND: Tensor,
    positions: Positions,
    injected: tuple[Tensor, Tensor],
    keep: Tensor,
    source: Source | None,
) -> Tensor:
    """One layer over slots that see injected keys and each other."""

    def attention(h_BND: Tensor) -> Tensor:
        q, k, v = block.attention.project(h_BND, positions)
        k, v = torch.cat([injected[0], k], dim=2), torch.cat([injected[1], v], dim=2)
        return block.attention.merge(attend(q, k, v, keep=keep))

    return block.run(x_BND, attention, source)


def _training_mask(slots: Slots, length: int) -> Tensor:
    """Which keys a slot sees: states before its anchor, and its own block up to itself."""
    before = torch.arange(length, device=slots.index_N.device) < slots.anchor_BN[..., None]
    index, block = slots.index_N, slots.block_N
    inside_NN = (block[:, None] == block) & (index[None, :] <= index[:, None])
    inside_BNN = inside_NN.expand(before.shape[0], -1, -1)
    return torch.cat([before, inside_BNN], dim=-1)[:, None]
