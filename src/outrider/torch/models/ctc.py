"""The parallel decoder: a whole translation in one pass, by CTC over upsampled encoder states.

    x_u = memory[u // n] + c[u mod n] + position(u)          n slots for every source token
    h   = layers(x)                                          every slot sees every slot
    z_u = head(h_u) + b                                      the target's own head

The target's padding token is the blank (see `nn.ctc`). If the token of a slot is known, W e(token)
is added to x_u. Training reveals the tokens of some slots (GLAT, Qian et al., 2021,
arXiv:2008.07905), refinement those of confident slots of the last pass.
"""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import CausalLMOutput

from outrider.torch.models.base import init_weights, right_padding
from outrider.torch.models.build import build_block
from outrider.torch.models.configs import CtcConfig
from outrider.torch.models.seq2seq import Seq2Seq
from outrider.torch.nn.attention import HeadShape, build_attention
from outrider.torch.nn.ctc import ctc_loss
from outrider.torch.nn.dropout import dropout
from outrider.torch.nn.layer.heads import SelfAttention
from outrider.torch.nn.linear import Linear, pack, pack_layers, packable, product
from outrider.torch.nn.loss import IGNORED
from outrider.torch.nn.position import Positions, SinusoidalPosition
from outrider.torch.nn.stack import Stack


class Ctc(PreTrainedModel):
    """Decodes all tokens at once with the encoder, embeddings and head of its target."""

    config_class = CtcConfig
    config: CtcConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _supports_sdpa = True
    target: Seq2Seq
    """The model whose encoder, embeddings and head are used; set by `bind`."""
    steps: Tensor
    """Training batches so far, which determine the share of known slots."""
    _packed_head: Tensor | None = None

    def __init__(self, config: CtcConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.copies = nn.Parameter(torch.zeros(config.upsample, width))
        self.position = SinusoidalPosition(width)
        self.told = Linear(width, width, bias=False)  # W; the name is that of the stored weight
        blocks = [
            build_block(config, _build_attention(config), cross=config.cross)
            for _ in range(config.layers)
        ]
        self.decoder = Stack(blocks, norm=nn.LayerNorm(width) if config.norm == "pre" else None)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.post_init()

    def bind(self, target: Seq2Seq) -> Self:
        """Attach to a target, whose weights are trained only if the config is joint."""
        self.config.check_target(target.config)
        if self.config.joint:
            self.target = target
        else:
            self.__dict__["target"] = target  # not registered as a submodule
        return self

    @property
    def reveal(self) -> float:
        """Current share of wrong slots whose token is revealed in training."""
        config = self.config
        done = min(1.0, int(self.steps) / config.reveal_steps)
        return config.reveal_start + (config.reveal_end - config.reveal_start) * done

    def encode(self, source_BS: Tensor, keep_BS: Tensor | None) -> Tensor:
        """Encode the source with the target's encoder, with gradients only if joint."""
        with torch.set_grad_enabled(self.config.joint and torch.is_grad_enabled()):
            return self.target.encode(source_BS, keep_BS)

    def slots(
        self,
        memory_BSD: Tensor,
        keep_BS: Tensor | None = None,
        known_BU: Tensor | None = None,
    ) -> Tensor:
        """Score every token at all slots of all rows: [B, U, V]; arguments as in `run`."""
        return self.logits(self.run(memory_BSD, keep_BS, known_BU))

    def states(self, memory_BSD: Tensor, keep_BS: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the inputs of the head and their mask, for a drafter."""
        keep_BU = None
        if keep_BS is not None:
            keep_BU = keep_BS.repeat_interleave(self.config.upsample, dim=1)
        return self.run(memory_BSD, keep_BS), keep_BU

    def run(
        self,
        memory_BSD: Tensor,
        keep_BS: Tensor | None = None,
        known_BU: Tensor | None = None,
    ) -> Tensor:
        """Run all slots of all rows: [B, U, D].

        Args:
            memory_BSD: Output of the target's encoder.
            keep_BS: Its real positions; None without padding.
            known_BU: Known tokens of slots, -1 where unknown.
        """
        config, copies = self.config, self.config.upsample
        x_BUD = memory_BSD.repeat_interleave(copies, dim=1)
        slots = x_BUD.shape[1]
        x_BUD = x_BUD + self.copies.repeat(slots // copies, 1)
        if known_BU is not None:
            token_BUD = self.target.tokens(known_BU.clamp(min=0)).detach()
            token_BUD = self.told(token_BUD * self.target.config.embedding_scale)
            x_BUD = x_BUD + token_BUD * (known_BU >= 0)[..., None]
        positions = Positions.upto(slots, x_BUD.device)
        x_BUD = dropout(self.position(x_BUD, positions), config.dropout, self.training)
        keep_BU = None if keep_BS is None else keep_BS.repeat_interleave(copies, dim=1)
        sources = self.decoder.sources(memory_BSD, keep_BS) if config.cross else None
        return self.decoder(x_BUD, positions, keep_BU, sources)

    def count(self, memory_BSD: Tensor, keep_BS: Tensor | None) -> Tensor:
        """Return the number of real slots of each row."""
        batch, length, _ = memory_BSD.shape
        if keep_BS is None:
            return torch.full((batch,), length * self.config.upsample, device=memory_BSD.device)
        return keep_BS.sum(1) * self.config.upsample

    def logits(self, hidden_BUD: Tensor) -> Tensor:
        """Score every token, including the blank, with the target's head and an own bias."""
        head_VD = self.target.head_weight
        if not self.config.joint:
            head_VD = head_VD.detach()
        return product(hidden_BUD, head_VD, self.bias, self._packed_head)

    def lengths(self, labels_BT: Tensor) -> Tensor:
        """Count the labels of each row without end tokens, which have no slot."""
        ends = self.target.config.end_tokens
        excluded = torch.tensor([IGNORED, *ends], device=labels_BT.device)
        return (~torch.isin(labels_BT, excluded)).sum(1)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        memory: Tensor | None = None,
        known: Tensor | None = None,
        label_smoothing: float = 0.0,
        num_items_in_batch: float | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        """Run all slots; with labels, compute the loss, with the target's for a joint model.

        Args:
            input_ids: Source tokens, padded on the right.
            attention_mask: 1 for source tokens that are not padding.
            labels: Target tokens, end token last, -100 where unlabelled.
            memory: Output of the encoder for this source, if it has run already.
            known: Known tokens of slots, -1 where unknown.
            label_smoothing: Weight of the uniform distribution in the loss.
            num_items_in_batch: Divisor of the summed loss; by default the number of labels.
        """
        keep_BS = right_padding(attention_mask)
        if memory is None:
            assert input_ids is not None, "forward needs input_ids or memory"
            memory = self.encode(input_ids, keep_BS)
        logits_BUV = self.slots(memory, keep_BS, known)
        if labels is None:
            return CausalLMOutput(logits=logits_BUV)
        items = num_items_in_batch or int((labels != IGNORED).sum().clamp(min=1))
        loss = ctc_loss(
            logits_BUV,
            labels,
            self.lengths(labels),
            self.count(memory, keep_BS),
            blank=self.config.blank,
            smoothing=label_smoothing,
            scale=1 / items,
        )
        if self.config.joint and self.config.ar_weight:
            target = self.target
            hidden_BTD = target.decode(target.shift_right(labels), memory, keep_BS)
            target_loss = target.loss(hidden_BTD, labels, smoothing=label_smoothing, items=items)
            loss = loss + self.config.ar_weight * target_loss
        return CausalLMOutput(loss=loss, logits=None if self.training else logits_BUV)

    def pack_weights(self) -> None:
        """Pack weights for speed on a CPU, at the cost of memory; the model must not be trained."""
        if not packable(self.bias):
            return
        pack_layers(self.decoder)
        pack_layers(self.told)
        self._packed_head = self.target._packed_head
        if self._packed_head is None:
            self._packed_head = pack(self.target.head_weight)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Ctc):
            init.normal_(module.copies, std=0.02)
            init.zeros_(module.bias)
            init.zeros_(module.steps)
        else:
            init_weights(module)


def _build_attention(config: CtcConfig) -> SelfAttention:
    width, heads = config.hidden_size, config.num_attention_heads
    attention = build_attention(
        {"kind": "full"},
        causal=False,
        dropout=config.attention_dropout,
        shape=HeadShape(heads, heads, width // heads),
    )
    return SelfAttention(width, heads, attention)


def split_weights(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split the weights of a joint model into those of the parallel decoder and of the target."""
    prefix = "target."
    own = {name: weight for name, weight in weights.items() if not name.startswith(prefix)}
    theirs = {name.removeprefix(prefix): weights[name] for name in weights.keys() - own.keys()}
    return own, theirs
