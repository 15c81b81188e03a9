"""The decoder-only language model.

With `memory: M` it reads long texts segment by segment and remembers the last M tokens between two
(`nn.memory`). Without a memory at hand, and when it decodes, it is the same weights under a sliding
window of M and one segment.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from transformers.modeling_outputs import CausalLMOutput

from outrider.errors import InputError
from outrider.models.base import Model, build_stack, right_padding
from outrider.models.config import LanguageModelConfig
from outrider.models.state import DecoderState
from outrider.nn.loss import IGNORED
from outrider.nn.memory import Memory, run_segment
from outrider.nn.position import Positions

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
        self.post_init()

    def hidden(self, tokens_BT: Tensor, seen: list[Tensor] | None = None) -> Tensor:
        """Run whole sequences: hidden states of all positions; `seen` collects every layer's."""
        positions = Positions.upto(tokens_BT.shape[1], tokens_BT.device)
        x_BTD = self.embed(self.tokens, self.decoder_position, tokens_BT, positions)
        return self.decoder(x_BTD, positions, seen=seen)

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
        x_BTD = self.embed(self.tokens, self.decoder_position, tokens_BT, positions)
        return run_segment(self.decoder, x_BTD, tokens_BT == self.config.bos_token_id, memory)

    def open(self, rows: int, *, capacity: int) -> DecoderState:
        """Start `rows` empty rows with room for `capacity` tokens."""
        return DecoderState(
            self.decoder.new_caches(rows, capacity),
            [None] * len(self.decoder.blocks),
            lengths=[0] * rows,
            capacity=capacity,
            device=self.tokens.weight.device,
        )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        label_smoothing: float = 0.0,
        num_items_in_batch: Tensor | float | None = None,
        memory: Memory | None = None,
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
        """
        if input_ids is None:
            raise InputError("forward needs input_ids")
        right_padding(attention_mask)  # causal rows need no mask, only the right side padded
        if memory is None:
            hidden_BTD = self.hidden(input_ids)
        else:
            hidden_BTD, memory = self.read_segment(input_ids, memory)
        loss = None
        if labels is not None:
            wanted_BT = F.pad(labels[:, 1:], (0, 1), value=IGNORED)[:, : input_ids.shape[1]]
            loss = self.loss(
                hidden_BTD, wanted_BT, smoothing=label_smoothing, items=num_items_in_batch
            )
        logits = None if self.training and labels is not None else self.logits(hidden_BTD)
        return SegmentOutput(loss=loss, logits=logits, memory=memory)

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """Let Hugging Face's `generate` run (without a cache: `outrider.load` is the fast way)."""
        return {"input_ids": input_ids, "attention_mask": kwargs.get("attention_mask")}
