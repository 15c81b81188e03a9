"""The encoder-decoder: encodes a source once and generates a target token by token.

With `norm: post` and `logits_bias: true` its weights are those of a Marian model (see `export.py`).
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from outrider.errors import InputError
from outrider.torch.models.base import Model, right_padding
from outrider.torch.models.build import build_embedding_norm, build_position, build_stack, norm_kind
from outrider.torch.models.configs import Seq2SeqConfig
from outrider.torch.models.pretrained import PretrainedEncoder
from outrider.torch.models.state import DecoderState
from outrider.torch.nn.cache import SLACK
from outrider.torch.nn.family.pair import PairAttention
from outrider.torch.nn.family.skip import Router
from outrider.torch.nn.loss import IGNORED
from outrider.torch.nn.position import Positions
from outrider.torch.nn.stack import Stack


class Encoder(nn.Module):
    """Adapter of the encoder for Hugging Face: token ids to hidden states."""

    def __init__(self, model: "Seq2Seq") -> None:
        super().__init__()
        self._model = [model]  # in a list: not registered as a submodule

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> BaseModelOutput:
        """Encode right-padded rows."""
        keep_BS = right_padding(attention_mask)
        return BaseModelOutput(last_hidden_state=self._model[0].encode(input_ids, keep_BS))


class Seq2Seq(Model):
    """Encoder, decoder, embeddings and head."""

    config_class = Seq2SeqConfig
    config: Seq2SeqConfig
    main_input_name = "input_ids"
    pretrained: PretrainedEncoder | None
    """Pretrained encoder in place of encoder layers."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__(config)
        self.source_tokens = (
            None if config.share_embeddings else nn.Embedding(config.vocab_size, config.hidden_size)
        )
        skip = config.skip_config
        if config.encoder is None:
            self.pretrained = None
            self.encoder_position = build_position(config, causal=False)
            self.encoder_embedding_norm = build_embedding_norm(config)
            self.encoder = build_stack(config, "encoder_attention", cross=False, skip=skip)
        else:
            width = config.hidden_size
            self.pretrained = PretrainedEncoder(config.encoder, width=width, dropout=config.dropout)
            self.encoder_position = self.encoder_embedding_norm = None
            # Only the norm.
            self.encoder = Stack([], norm=norm_kind(config).build(width))
        self.router = None if skip is None else Router(config.vocab_size, below=skip.below)
        self.pair = PairAttention(config.hidden_size) if config.pair_attention else None
        # Read by Hugging Face's generate.
        setattr(self.encoder, "main_input_name", self.main_input_name)  # noqa: B010
        self.decoder = build_stack(config, "decoder_attention", cross=True)
        self.post_init()

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        """Return the encoder for Hugging Face's `generate`."""
        return Encoder(self)

    def encode(self, source_BS: Tensor, keep_BS: Tensor | None = None) -> Tensor:
        """Encode the source; `keep_BS` marks real tokens, None without padding."""
        positions = Positions.upto(source_BS.shape[1], source_BS.device)
        if self.pretrained is None:
            table = self.tokens if self.source_tokens is None else self.source_tokens
            norm = self.encoder_embedding_norm
            x_BSD = self.embed(table, self.encoder_position, source_BS, positions, norm=norm)
        else:
            x_BSD = self.pretrained(source_BS, keep_BS)
        if self.router is None:
            memory_BSD = self.encoder(x_BSD, positions, keep_BS)
        else:
            active_BS = self.router(source_BS, keep_BS)
            memory_BSD = self.encoder(x_BSD, positions, keep_BS, active_BT=active_BS)
        return memory_BSD if self.pair is None else self.pair(memory_BSD, keep_BS)

    def decode(
        self,
        tokens_BT: Tensor,
        memory_BSD: Tensor,
        keep_BS: Tensor | None = None,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the decoder's hidden states for whole targets (teacher forcing).

        `seen` collects the output of each layer.
        """
        positions = Positions.upto(tokens_BT.shape[1], tokens_BT.device)
        x_BTD = self.embed_target(tokens_BT, positions)
        sources = self.decoder.sources(memory_BSD, keep_BS)
        keep_BT = self.real_tokens(tokens_BT)
        return self.decoder(x_BTD, positions, keep_BT, sources, seen)

    def open(
        self, memory_BSD: Tensor, keep_BS: Tensor | None, *, capacity: int, slack: int = SLACK
    ) -> DecoderState:
        """Return the state of one row per source for up to `capacity` tokens."""
        rows = memory_BSD.shape[0]
        return DecoderState(
            self.decoder.new_caches(rows, capacity, slack),
            self.decoder.sources(memory_BSD, keep_BS),
            lengths=[0] * rows,
            capacity=capacity,
            device=memory_BSD.device,
            slack=slack,
        )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        label_smoothing: float = 0.0,
        num_items_in_batch: Tensor | float | None = None,
        **_: Any,
    ) -> Seq2SeqLMOutput:
        """Run with teacher forcing; in training with labels, return only the loss.

        Args:
            input_ids: Source tokens, padded on the right.
            attention_mask: 1 for source tokens that are not padding.
            decoder_input_ids: Inputs of the decoder; by default the labels shifted right.
            labels: Target tokens, -100 where unlabelled.
            encoder_outputs: Output of the encoder, instead of `input_ids`.
            label_smoothing: Weight of the uniform distribution in the loss.
            num_items_in_batch: Divisor of the summed loss; by default the number of labels.
        """
        keep_BS = right_padding(attention_mask)
        if encoder_outputs is not None:
            memory_BSD = encoder_outputs[0]
        elif input_ids is not None:
            memory_BSD = self.encode(input_ids, keep_BS)
        else:
            raise InputError("forward needs input_ids or encoder_outputs")
        if decoder_input_ids is None:
            if labels is None:
                raise InputError("forward needs decoder_input_ids or labels")
            decoder_input_ids = self.shift_right(labels)
        hidden_BTD = self.decode(decoder_input_ids, memory_BSD, keep_BS)
        loss = None
        if labels is not None:
            loss = self.loss(
                hidden_BTD, labels, smoothing=label_smoothing, items=num_items_in_batch
            )
        logits = None if self.training and labels is not None else self.logits(hidden_BTD)
        return Seq2SeqLMOutput(loss=loss, logits=logits, encoder_last_hidden_state=memory_BSD)

    def shift_right(self, labels_BT: Tensor) -> Tensor:
        """Return the decoder inputs for these labels."""
        start = torch.full_like(labels_BT[:, :1], self.config.decoder_start_token_id)
        shifted_BT = torch.cat([start, labels_BT[:, :-1]], dim=1)
        return shifted_BT.masked_fill(shifted_BT == IGNORED, self.config.pad_token_id)

    def prepare_inputs_for_generation(
        self, decoder_input_ids: Tensor, **kwargs: Any
    ) -> dict[str, Any]:
        """Support Hugging Face's `generate`, without a cache."""
        return {
            "decoder_input_ids": decoder_input_ids,
            "encoder_outputs": kwargs.get("encoder_outputs"),
            "attention_mask": kwargs.get("attention_mask"),
        }
