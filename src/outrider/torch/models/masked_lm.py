"""The masked language model (BERT, Devlin et al., 2019, arXiv:1810.04805): an encoder alone.

    h       = encoder(x')              x': the text with some tokens masked or replaced
    p(x_t)  = softmax(E h_t + b)       only at the masked or replaced positions t

E are the embeddings or a separate head; b is optional. BERT has one more layer and a norm between h
and E. Here E is applied to h, as in all other models here: such a layer is discarded with the head,
and pre-norm layers already end in a norm.

`TextEncoder` is the model without its head; it can encode the source of a translation model
(`pretrained.py`).
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput

from outrider.errors import InputError
from outrider.torch.models.base import TokenModel, right_padding
from outrider.torch.models.build import (
    build_embedding_norm,
    build_head,
    build_logits_bias,
    build_position,
    build_position_mlp,
    build_stack,
)
from outrider.torch.models.configs import MaskedLmConfig
from outrider.torch.nn.loss import counted_places
from outrider.torch.nn.position import Positions

SHAPE_STEP = 64
"""The number of scored positions in training is a multiple of this."""


class TextEncoder(TokenModel):
    """A bidirectional encoder: token ids to hidden states."""

    config_class = MaskedLmConfig
    config: MaskedLmConfig
    main_input_name = "input_ids"

    def __init__(self, config: MaskedLmConfig) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encoder_position = build_position(config, causal=False)
        self.encoder_embedding_norm = build_embedding_norm(config)
        self.position_mlp = build_position_mlp(config)
        self.encoder = build_stack(config, "attention", cross=False)
        self.head = self.logits_bias = None
        self.add_head(config)
        self.post_init()

    def add_head(self, config: MaskedLmConfig) -> None:
        """Build the head; none here."""

    def hidden(
        self, tokens_BS: Tensor, keep_BS: Tensor | None = None, seen: list[Tensor] | None = None
    ) -> Tensor:
        """Encode right-padded rows; `seen` collects the embeddings and the output of each layer."""
        positions = Positions.upto(tokens_BS.shape[1], tokens_BS.device)
        norm = self.encoder_embedding_norm
        x_BSD = self.embed(self.tokens, self.encoder_position, tokens_BS, positions, norm=norm)
        if seen is not None:
            seen.append(x_BSD)
        return self.encoder(x_BSD, positions, keep_BS, seen=seen)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        output_hidden_states: bool = False,
        **_: Any,
    ) -> BaseModelOutput | MaskedLMOutput:
        """Encode right-padded rows; `attention_mask` is 1 for real tokens.

        The last of the hidden states is after the final norm.
        """
        if input_ids is None:
            raise InputError("forward needs input_ids")
        seen: list[Tensor] | None = [] if output_hidden_states else None
        hidden_BSD = self.hidden(input_ids, right_padding(attention_mask), seen)
        states = None if seen is None else (*seen[:-1], hidden_BSD)
        return BaseModelOutput(last_hidden_state=hidden_BSD, hidden_states=states)


class MaskedLm(TextEncoder):
    """Predicts masked tokens from the tokens on both sides."""

    def add_head(self, config: MaskedLmConfig) -> None:
        """Build the head."""
        self.head = build_head(config)
        self.logits_bias = build_logits_bias(config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        label_smoothing: float = 0.0,
        num_items_in_batch: Tensor | float | None = None,
        **_: Any,
    ) -> MaskedLMOutput:
        """Score the tokens of every position; in training with labels, return only the loss.

        Args:
            input_ids: Tokens, some of them `mask_token_id`, padded on the right.
            attention_mask: 1 for tokens that are not padding.
            labels: The original tokens, -100 where unlabelled.
            label_smoothing: Weight of the uniform distribution in the loss.
            num_items_in_batch: Divisor of the summed loss; by default the number of labels.
        """
        if input_ids is None:
            raise InputError("forward needs input_ids")
        hidden_BSD = self.hidden(input_ids, right_padding(attention_mask))
        loss = None
        if labels is not None:
            hidden_1ND, labels_1N = at_labels(hidden_BSD, labels)
            loss = self.loss(
                hidden_1ND, labels_1N, smoothing=label_smoothing, items=num_items_in_batch
            )
        logits = None if self.training and labels is not None else self.logits(hidden_BSD)
        return MaskedLMOutput(loss=loss, logits=logits)

    @torch.inference_mode()
    def count_right(self, input_ids: Tensor, attention_mask: Tensor | None, labels: Tensor) -> int:
        """Count the labels with the highest score."""
        hidden_BSD = self.hidden(input_ids, right_padding(attention_mask))
        hidden_1ND, labels_1N = at_labels(hidden_BSD, labels)
        return int((self.logits(hidden_1ND).argmax(-1) == labels_1N).sum())


def at_labels(hidden_BSD: Tensor, labels_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Select the labelled positions as one row, because scoring tokens is most of the work."""
    place_N = counted_places(labels_BS, SHAPE_STEP)
    return hidden_BSD.flatten(0, 1)[place_N][None], labels_BS.flatten()[place_N][None]
