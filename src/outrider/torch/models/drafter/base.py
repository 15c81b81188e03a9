"""The weights of a block drafter, and what it takes from the target it is bound to.

The layers of a drafter, and the ways to run many blocks of slots through them at once.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers import initialization as init

from outrider.errors import ConfigError, ModelError
from outrider.formats.spec import IN_ATTENTION
from outrider.torch.models.base import init_weights
from outrider.torch.models.build import build_block
from outrider.torch.models.configs import DrafterConfig
from outrider.torch.models.language_model import LanguageModel
from outrider.torch.models.seq2seq import Seq2Seq
from outrider.torch.nn.attention import HeadShape, build_attention
from outrider.torch.nn.family.allocation import StepAllocation, StepTable
from outrider.torch.nn.kernel.dense import attend
from outrider.torch.nn.layer.block import Block
from outrider.torch.nn.layer.heads import SelfAttention, Source
from outrider.torch.nn.layer.recurrent import SlotLstm
from outrider.torch.nn.linear import Linear, pack, packable
from outrider.torch.nn.position import Positions, Rotary

__all__ = [
    "DrafterBase",
    "ParallelDecoder",
    "Tables",
    "TrainingSlots",
    "block_sizes",
    "build_layer",
    "keys_and_values",
    "lstm_of",
    "run_block",
    "training_mask",
]


class TrainingSlots(NamedTuple):
    """Training slots of a batch, laid out side by side: N slots a row, in blocks."""

    anchor_BN: Tensor
    """Position of the newest token of each slot's block."""
    index_N: Tensor
    """Place of the slot in its block."""
    block_N: Tensor
    """Which block it belongs to."""
    known_BN: Tensor
    """Whether the slot is given its token instead of the mask; always true for index 0."""


def build_layer(config: DrafterConfig) -> Block:
    """Build one layer: attention or an LSTM, the source, and a feed-forward."""
    width, heads = config.hidden_size, config.num_attention_heads
    if config.core == "lstm":
        # `lstm_of` takes it out again: a layer is run with whatever stands in this place.
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


def lstm_of(block: Block) -> SlotLstm:
    """Take the LSTM out of a layer that has one in place of attention."""
    return cast(SlotLstm, block.attention)


def block_sizes(slots: TrainingSlots) -> list[int]:
    """Count the slots of each block, in order."""
    sizes: list[int] = torch.unique_consecutive(slots.block_N, return_counts=True)[1].tolist()
    return sizes


def keys_and_values(
    block: Block, inject: Linear, states_BTE: Tensor, positions: Positions
) -> tuple[Tensor, Tensor]:
    """Project the target's states for one layer of the drafter."""
    attention = block.attention
    kv = inject(states_BTE).unflatten(-1, (-1, attention.head_width)).transpose(1, 2)
    k, v = kv.chunk(2, dim=1)
    return (k if attention.rotary is None else attention.rotary(k, positions)), v


def run_block(
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


def training_mask(slots: TrainingSlots, length: int) -> Tensor:
    """Which keys a slot sees: states before its anchor, and its own block up to itself."""
    before = torch.arange(length, device=slots.index_N.device) < slots.anchor_BN[..., None]
    index, block = slots.index_N, slots.block_N
    inside_NN = (block[:, None] == block) & (index[None, :] <= index[:, None])
    inside_BNN = inside_NN.expand(before.shape[0], -1, -1)
    return torch.cat([before, inside_BNN], dim=-1)[:, None]


Target = Seq2Seq | LanguageModel


class ParallelDecoder(Protocol):
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


def _shape(weights: Mapping[str, Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(weights[name].shape) if name in weights else None


def _size(weight: Tensor) -> float:
    return float(weight.square().mean().sqrt())


class DrafterBase(PreTrainedModel):
    """Weights of a drafter, and the target it is bound to, whose weights are not its own."""

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
            build_layer(config) for _ in range(config.layers)
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
        self._ahead: list[ParallelDecoder] = []
        self.post_init()

    @property
    def target(self) -> Target:
        """The model it drafts for."""
        if not self._target:
            raise ModelError("this drafter has no target yet; bind it to one")
        return self._target[0]

    def bind(self, target: Target, ahead: ParallelDecoder | None = None) -> Self:
        """Draft for `target`, whose weights will not change; `ahead` is its CTC decoder."""
        config = self.config
        config.check_target(target.config)
        if config.reads == "ctc":
            if ahead is None:
                raise ModelError("the drafter reads a CTC decoder, and this model has none")
            self._ahead = [ahead]
        self._target = [target]
        self._tables = None
        return self

    @torch.no_grad()
    def start_as_copies(self) -> None:
        """Begin with what the target's last layers know: of the source above all.

        A copy sees the target's states through `inject`, which begins with the layer's own keys and
        values for the tap that is nearest to what the layer saw; and the slots begin as the first
        copy's input for the token before the newest, beside the newest token itself.
        """
        stack, taps = self.target.decoder, self.config.taps
        assert taps is not None
        count, depth = len(self.blocks), len(stack.blocks)
        if count > depth:
            raise ConfigError("copy_layers", f"the target has {depth} layers, the drafter {count}")
        for number, (block, inject) in enumerate(zip(self.blocks, self.inject, strict=True)):
            layer = depth - count + number
            theirs = stack.blocks[layer].state_dict()
            own = block.state_dict()
            odd = [n for n in own.keys() | theirs.keys() if _shape(own, n) != _shape(theirs, n)]
            if odd:
                raise ConfigError(
                    "copy_layers",
                    f"{sorted(odd)[0]} has another shape than in the target; leave "
                    "num_attention_heads, intermediate_size, activation, gated and norm out",
                )
            block.load_state_dict(theirs)
            width = self.config.hidden_size
            near = min(range(len(taps)), key=lambda tap: abs(taps[tap] - (layer - 1)))
            before = stack.blocks[layer].attention_residual.norm
            if self.target.config.norm == "pre":  # the copy's keys are of what this norm gives
                self.state_norms[near].load_state_dict(before.state_dict())
            elif layer:
                given = stack.blocks[layer - 1].feedforward_residual.norm.weight
                self.state_norms[near].weight.fill_(_size(given))
            if number == 0:
                self.from_last.weight.zero_()
                self.from_last.bias.zero_()
                self.from_last.weight[:, near * width : (near + 1) * width].fill_diagonal_(1.0)
            kv_ED = theirs["attention.qkv.weight"][width:]
            if len(kv_ED) == 2 * width:
                inject.weight.zero_()
                inject.weight[:, near * width : (near + 1) * width] = kv_ED
                inject.bias.copy_(theirs["attention.qkv.bias"][width:])
        last = stack.norm if stack.norm is not None else stack.blocks[-1].feedforward_residual.norm
        if stack.norm is not None:
            self.norm.load_state_dict(last.state_dict())
        else:  # what comes is normed already: keep its length
            self.norm.weight.fill_(_size(last.weight))

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

    def pack_weights(self) -> None:
        """Trade memory for speed on a CPU; only for a drafter that is not trained any more."""
        if packable(self.bias):
            for module in self.modules():
                if isinstance(module, Linear):
                    module.pack_weight()

    def _allocate(self, memory_BSD: Tensor | None, keep_BS: Tensor | None) -> StepTable | None:
        """Spread the source over the steps of the text, where this drafter does so."""
        if self.allocation is None:
            return None
        assert memory_BSD is not None, "steps are allocated from a source"
        table: StepTable = self.allocation(memory_BSD, keep_BS)
        return table

    def _head(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the words that may be drafted."""
        theirs = self.target.logits_bias
        bias_V = self.bias if theirs is None else self.bias + theirs
        return self._listed(self.target.head_weight), self._listed(bias_V)

    def _listed(self, of_V: Tensor) -> Tensor:
        """Keep the rows of words that may be drafted."""
        return of_V if self.kept_V is None else of_V[self.kept_V]

    def target_logits(self, hidden: Tensor) -> Tensor:
        """Score the words that may be drafted as the target does."""
        bias_V = self.target.logits_bias
        head_VD = self._listed(self.target.head_weight)
        return F.linear(hidden, head_VD, None if bias_V is None else self._listed(bias_V))

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
        elif isinstance(module, DrafterBase):
            init.normal_(module.mask, std=0.02)
            init.zeros_(module.bias)
        else:
            init_weights(module)
