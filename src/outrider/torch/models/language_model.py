"""The decoder-only language model.

With `memory: M` it reads long texts segment by segment and remembers the last M tokens between two
(`nn.stack.memory`). Without a memory at hand, and when it decodes, it is the same weights under a
sliding window of M and one segment.

In training it may predict more than the next token, and from more than the last layer
(`nn.next_tokens`). Its loss outside training, and what it writes, are of the last layer and the
next token alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import CausalLMOutput

from outrider.errors import InputError
from outrider.torch.models.base import Model, right_padding
from outrider.torch.models.build import build_stack
from outrider.torch.models.configs import LanguageModelConfig
from outrider.torch.models.state import DecoderState
from outrider.torch.nn.cache import SLACK
from outrider.torch.nn.loss import IGNORED
from outrider.torch.nn.next_tokens import FURTHER_WEIGHT, NextTokens, layer_weights
from outrider.torch.nn.position import Positions
from outrider.torch.nn.stack.memory import Memory, run_segment

__all__ = ["LanguageModel", "SegmentOutput"]


@dataclass
class SegmentOutput(CausalLMOutput):
    """What a segment gave, and what the next one remembers of it."""

    memory: Memory | None = None


class LanguageModel(Model):
    """Predicts each token from those before it."""

    config_class = LanguageModelConfig
    config: LanguageModelConfig
    main_input_name = "input_ids"

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config)
        self.decoder = build_stack(config, "attention", cross=False)
        self.next_tokens = (
            NextTokens(config.next_tokens, config.hidden_size) if config.next_tokens > 1 else None
        )
        self.post_init()

    def hidden(self, tokens_BT: Tensor, seen: list[Tensor] | None = None) -> Tensor:
        """Run whole sequences: hidden states of all positions; `seen` collects every layer's."""
        positions = Positions.upto(tokens_BT.shape[1], tokens_BT.device)
        norm = self.decoder_embedding_norm
        x_BTD = self.embed(self.tokens, self.decoder_position, tokens_BT, positions, norm=norm)
        return self.decoder(x_BTD, positions, self.real_tokens(tokens_BT), seen=seen)

    def new_memory(self, rows: int, tokens: int | None = None) -> Memory:
        """Return an empty memory, by default of the size the model was trained with."""
        tokens = self.config.memory if tokens is None else tokens
        if not self.config.memory:
            raise InputError("this model has no memory; train one with model.memory above 0")
        return Memory.empty(self.decoder, rows, tokens)

    def read_segment(self, tokens_BT: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Run the next tokens of every row: their hidden states, and the memory after them.

        The start token begins a document: its row forgets what came before.
        """
        positions = Positions.upto(tokens_BT.shape[1], tokens_BT.device)
        norm = self.decoder_embedding_norm
        x_BTD = self.embed(self.tokens, self.decoder_position, tokens_BT, positions, norm=norm)
        return run_segment(self.decoder, x_BTD, tokens_BT == self.config.bos_token_id, memory)

    def open(self, rows: int, *, capacity: int, slack: int = SLACK) -> DecoderState:
        """Start `rows` empty rows with room for `capacity` tokens."""
        return DecoderState(
            self.decoder.new_caches(rows, capacity, slack),
            [None] * len(self.decoder.blocks),
            lengths=[0] * rows,
            capacity=capacity,
            device=self.tokens.weight.device,
            slack=slack,
        )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        label_smoothing: float = 0.0,
        num_items_in_batch: Tensor | float | None = None,
        memory: Memory | None = None,
        progress: float | None = None,
        **_: Any,
    ) -> SegmentOutput:
        """Predict the next token everywhere. In training with labels only the loss is computed.

        Args:
            input_ids: Tokens, padded on the right.
            attention_mask: 1 for tokens that are not padding.
            labels: `input_ids` with -100 where nothing counts; shifted here, as Hugging Face does.
                One column more names what follows the last token.
            label_smoothing: Weight of the uniform distribution in the loss.
            num_items_in_batch: What to divide the summed loss by; by default the labels counted.
            memory: What is remembered of the tokens before (`new_memory` at first); rows are then
                segments that go on where the last ones ended.
            progress: Share of the training that is over. If given, layers below the last predict
                too; has no effect outside training or with a memory.
        """
        if input_ids is None:
            raise InputError("forward needs input_ids")
        right_padding(attention_mask)  # causal rows need no mask, only the right side padded
        # From half of the training on the layers below count nothing, so they are not kept.
        asked = self.training and progress is not None and progress < 0.5
        seen: list[Tensor] | None = [] if asked else None
        if memory is None:
            hidden_BTD = self.hidden(input_ids, seen)
        else:
            hidden_BTD, memory = self.read_segment(input_ids, memory)
        loss = None
        if labels is not None:
            loss = self._sum_losses(
                [*self._below(seen or [], progress or 0.0), (hidden_BTD, 1.0)],
                labels,
                smoothing=label_smoothing,
                items=num_items_in_batch,
            )
        logits = None if self.training and labels is not None else self.logits(hidden_BTD)
        return SegmentOutput(loss=loss, logits=logits, memory=memory)

    def _below(self, seen: Sequence[Tensor], progress: float) -> Iterator[tuple[Tensor, float]]:
        """Yield, of all layers but the last, those that still count, ready for the head."""
        norm = self.decoder.norm
        for x_BTD, weight in zip(seen, layer_weights(len(seen), progress), strict=False):
            if weight:
                yield (x_BTD if norm is None else norm(x_BTD)), weight

    def _sum_losses(
        self,
        layers: Sequence[tuple[Tensor, float]],
        labels_BT: Tensor,
        *,
        smoothing: float,
        items: Tensor | float | None,
    ) -> Tensor:
        """Sum over the layers, and in training over the tokens ahead; each layer has a weight.

        All but the plain loss are computed again in the backward pass, one after another. Kept,
        each would hold as much as the logits; so the peak is that of the plain loss.
        """
        tokens = layers[-1][0].shape[1]
        next_BT = _ahead(labels_BT, 1, tokens)
        if items is None:
            items = int((next_BT != IGNORED).sum().clamp(min=1))
        parts: list[Tensor] = []
        for ahead in range(self.config.next_tokens if self.training else 1, 0, -1):
            wanted_BT = _ahead(labels_BT, ahead, tokens)
            for x_BTD, weight in layers if ahead > 1 else layers[:-1]:
                share = items / (weight * (FURTHER_WEIGHT if ahead > 1 else 1.0))
                given = (x_BTD, wanted_BT, ahead, smoothing, share)
                parts.append(
                    checkpoint(
                        self._predict_further, *given, use_reentrant=False, preserve_rng_state=False
                    )
                )
        plain = self.loss(layers[-1][0], next_BT, smoothing=smoothing, items=items)
        return sum(parts, start=plain)

    def _predict_further(
        self,
        x_BTD: Tensor,
        wanted_BT: Tensor,
        ahead: int,
        smoothing: float,
        items: Tensor | float,
    ) -> Tensor:
        """Predict the token so many places ahead."""
        if self.next_tokens is not None and ahead > 1:
            x_BTD = self.next_tokens(x_BTD, ahead)
        return self.loss(x_BTD, wanted_BT, smoothing=smoothing, items=items)

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """Let Hugging Face's `generate` run (without a cache: `outrider.load` is the fast way)."""
        return {"input_ids": input_ids, "attention_mask": kwargs.get("attention_mask")}


def _ahead(labels_BT: Tensor, places: int, tokens: int) -> Tensor:
    """Move labels so many places back, to the positions that predict them."""
    return F.pad(labels_BT[:, places:], (0, places), value=IGNORED)[:, :tokens]
