"""The layers and weights of a block drafter, and its connection to the target."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers import initialization as init

from outrider.errors import ConfigError, ModelError
from outrider.formats.spec import ATTENTION_POSITIONS
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
from outrider.torch.nn.linear import Linear, pack, pack_layers, packable
from outrider.torch.nn.position import Positions, Rotary


class TrainingSlots(NamedTuple):
    """Training slots of a batch: N adjacent slots per row, in blocks."""

    anchor_BN: Tensor
    """Position of the last known token before each slot's block."""
    index_N: Tensor
    """Index of the slot in its block."""
    block_N: Tensor
    """Block of the slot."""
    known_BN: Tensor
    """Whether the slot's input is its token instead of the mask; always true for index 0."""


def build_layer(config: DrafterConfig) -> Block:
    """Build one layer: attention or an LSTM, cross-attention, and a feed-forward."""
    width, heads = config.hidden_size, config.num_attention_heads
    if config.core == "lstm":
        # Replaces the attention; see `lstm_of`.
        return build_block(config, cast(SelfAttention, SlotLstm(width)), cross=config.cross)
    shape = HeadShape(heads, heads, width // heads)
    attention = SelfAttention(
        width,
        heads,
        build_attention({"kind": "causal"}, causal=True, shape=shape, key="drafter"),
        # If the target's embeddings have no positions, this layer uses rotary ones.
        rotary=Rotary(width // heads) if config.position in ATTENTION_POSITIONS else None,
    )
    return build_block(config, attention, cross=config.cross)


def lstm_of(block: Block) -> SlotLstm:
    """Return the LSTM of a layer that has one in place of attention."""
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
    """Run one layer over slots that attend to injected keys and to each other."""

    def attention(h_BND: Tensor) -> Tensor:
        q, k, v = block.attention.project(h_BND, positions)
        k, v = torch.cat([injected[0], k], dim=2), torch.cat([injected[1], v], dim=2)
        return block.attention.merge(attend(q, k, v, keep=keep))

    return block.run(x_BND, attention, source)


def training_mask(slots: TrainingSlots, length: int) -> Tensor:
    """Return the mask of slots: states before the anchor, and the own block up to the slot."""
    before = torch.arange(length, device=slots.index_N.device) < slots.anchor_BN[..., None]
    index, block = slots.index_N, slots.block_N
    inside_NN = (block[:, None] == block) & (index[None, :] <= index[:, None])
    inside_BNN = inside_NN.expand(before.shape[0], -1, -1)
    return torch.cat([before, inside_BNN], dim=-1)[:, None]


Target = Seq2Seq | LanguageModel


class ParallelDecoder(Protocol):
    """A parallel decoder whose states the drafter reads: see `models.ctc`."""

    def states(self, memory_BSD: Tensor, keep_BS: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the states of all slots and their mask."""
        ...


class Tables(NamedTuple):
    """Precomputed matrices for choosing tokens."""

    head_VD: Tensor
    bias_V: Tensor
    packed: Tensor | None
    out_VR: Tensor
    """head O: maps the state to a change of each token's score."""
    token_VR: Tensor
    """P e(y) of every token."""
    state_RR: Tensor


def _shape(weights: Mapping[str, Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(weights[name].shape) if name in weights else None


def _size(weight: Tensor) -> float:
    return float(weight.square().mean().sqrt())


class DrafterBase(PreTrainedModel):
    """The weights of a drafter; the target's weights are not part of it."""

    config_class = DrafterConfig
    config: DrafterConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _supports_sdpa = True
    kept_V: Tensor | None
    """The shortlist: sorted tokens that may be drafted; None for all."""
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
        self._target: list[Target] = []  # in a list: not registered as a submodule
        self._parallel: list[ParallelDecoder] = []
        self.post_init()

    @property
    def target(self) -> Target:
        """The model to draft for."""
        if not self._target:
            raise ModelError("this drafter has no target yet; bind it to one")
        return self._target[0]

    def bind(self, target: Target, parallel: ParallelDecoder | None = None) -> Self:
        """Attach to a frozen target; `parallel` is its CTC decoder."""
        config = self.config
        config.check_target(target.config)
        if config.reads == "ctc":
            if parallel is None:
                raise ModelError("the drafter reads a CTC decoder, and this model has none")
            self._parallel = [parallel]
        self._target = [target]
        self._tables = None
        return self

    @torch.no_grad()
    def start_as_copies(self) -> None:
        """Initialise the layers as copies of the target's last layers.

        A copy sees the target's states through `inject`, which is initialised to the layer's own
        key and value projections for the tap nearest to the layer's input. The slots start as the
        first copy's input for the token before the newest, added to the newest token.
        """
        stack, taps = self.target.decoder, self.config.taps
        assert taps is not None
        count, depth = len(self.blocks), len(stack.blocks)
        if count > depth:
            raise ConfigError("copy_layers", f"the target has {depth} layers, the drafter {count}")
        for number, (block, inject) in enumerate(zip(self.blocks, self.inject, strict=True)):
            layer = depth - count + number
            theirs, own = stack.blocks[layer].state_dict(), block.state_dict()
            names = own.keys() | theirs.keys()
            different = [name for name in names if _shape(own, name) != _shape(theirs, name)]
            if different:
                raise ConfigError(
                    "copy_layers",
                    f"{min(different)} has another shape than in the target; leave "
                    "num_attention_heads, intermediate_size, activation, gated and norm out",
                )
            block.load_state_dict(theirs)
            width = self.config.hidden_size
            near = min(range(len(taps)), key=lambda tap: abs(taps[tap] - (layer - 1)))
            before = stack.blocks[layer].attention_residual.norm
            if self.target.config.norm == "pre":  # the copy projects keys from this norm's output
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
        else:  # the input is already normed: keep its scale
            self.norm.weight.fill_(_size(last.weight))

    def place_target(self) -> None:
        """Move target and parallel decoder to this device, in eval mode."""
        for part in [*self._target, *self._parallel]:
            if isinstance(part, nn.Module):
                part.to(self.device).eval()

    def read(
        self, memory_BSD: Tensor | None, keep_BS: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the keys of cross-attention and their mask."""
        if memory_BSD is None or not self._parallel:
            return memory_BSD, keep_BS
        parallel_BUD, keep_BU = self._parallel[0].states(memory_BSD, keep_BS)
        if keep_BS is not None and keep_BU is not None:
            keep_BS = torch.cat([keep_BS, keep_BU], dim=1)
        return torch.cat([memory_BSD, parallel_BUD.to(memory_BSD.dtype)], dim=1), keep_BS

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and drop cached tables, because weights may have changed."""
        self._tables = None
        return super().train(mode)

    def set_shortlist(self, ids_N: Tensor) -> None:
        """Set the tokens that may be drafted."""
        if len(ids_N) != self.config.shortlist:
            raise ValueError(f"{len(ids_N)} tokens for a shortlist of {self.config.shortlist}")
        self.kept_V = ids_N.to(self.bias.device, torch.long).sort().values
        self._tables = None

    def pack_weights(self) -> None:
        """Pack weights for speed on a CPU; the drafter must not be trained any more."""
        if packable(self.bias):
            pack_layers(self)

    def _allocate(self, memory_BSD: Tensor | None, keep_BS: Tensor | None) -> StepTable | None:
        """Return the step table of the source, if this drafter allocates steps."""
        if self.allocation is None:
            return None
        assert memory_BSD is not None, "steps are allocated from a source"
        table: StepTable = self.allocation(memory_BSD, keep_BS)
        return table

    def _head(self) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the tokens that may be drafted."""
        theirs = self.target.logits_bias
        bias_V = self.bias if theirs is None else self.bias + theirs
        return self._listed(self.target.head_weight), self._listed(bias_V)

    def _listed(self, of_V: Tensor) -> Tensor:
        """Select the rows of tokens that may be drafted."""
        return of_V if self.kept_V is None else of_V[self.kept_V]

    def target_logits(self, hidden: Tensor) -> Tensor:
        """Return the target's logits of the tokens that may be drafted."""
        bias_V = self.target.logits_bias
        head_VD = self._listed(self.target.head_weight)
        return F.linear(hidden, head_VD, None if bias_V is None else self._listed(bias_V))

    def tables(self) -> Tables:
        """Return the matrices precomputed from the frozen weights."""
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
        return [None if cross is None else cross.source(memory_BSD, keep_BS) for cross in crosses]

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=0.02)
        elif isinstance(module, DrafterBase):
            init.normal_(module.mask, std=0.02)
            init.zeros_(module.bias)
        else:
            init_weights(module)
