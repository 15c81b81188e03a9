"""Base classes of all models: embeddings and output head, and cached decoding."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init

from outrider.errors import InputError
from outrider.torch.models.build import (
    build_embedding_norm,
    build_head,
    build_logits_bias,
    build_position,
    build_position_mlp,
)
from outrider.torch.models.configs import ModelConfig
from outrider.torch.models.state import DecoderState
from outrider.torch.nn.attention import AttentionBase
from outrider.torch.nn.cache.ring import Ring
from outrider.torch.nn.dropout import dropout
from outrider.torch.nn.family.halting import Ponders
from outrider.torch.nn.linear import pack, pack_layers, packable, product
from outrider.torch.nn.loss import IGNORED, smoothed_cross_entropy
from outrider.torch.nn.position import Positions
from outrider.torch.nn.position.mlp import PositionMlp
from outrider.torch.nn.position.relative import Relative
from outrider.torch.nn.stack import Stack


@runtime_checkable
class Resets(Protocol):
    """A part that initialises its own weights."""

    def reset(self) -> None:
        """Initialise the weights."""
        ...


class TokenModel(PreTrainedModel):
    """A model with token embeddings and an output head."""

    config: ModelConfig
    tokens: nn.Embedding
    position_mlp: PositionMlp | None
    head: nn.Linear | None
    """None if the head is tied to the embeddings."""
    logits_bias: nn.Parameter | None
    base_model_prefix = ""
    _supports_sdpa = True
    _packed_head: Tensor | None = None

    def get_input_embeddings(self) -> nn.Module:
        """Return the target embeddings."""
        return self.tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the target embeddings, and with them a tied head."""
        self.tokens = value

    def get_output_embeddings(self) -> nn.Linear | None:
        """Return the output head, unless it is tied to the embeddings."""
        return self.head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        """Replace the output head."""
        self.head = value

    def embed(
        self,
        table: nn.Embedding,
        position: nn.Module | None,
        ids_BT: Tensor,
        positions: Positions,
        recall: Callable[[Tensor], Tensor] | None = None,
        *,
        norm: nn.Module | None = None,
    ) -> Tensor:
        """Return embeddings with position encodings, followed by `norm`.

        `recall` prepends the embeddings before the tokens of a step.
        """
        x_BTD = table(ids_BT) * self.config.embedding_scale
        if position is not None:
            x_BTD = position(x_BTD, positions)
        if self.position_mlp is not None:
            x_BTD = self.position_mlp((recall or self.position_mlp.pad)(x_BTD))
        if norm is not None:
            x_BTD = norm(x_BTD)
        return dropout(x_BTD, self.config.dropout, self.training)

    def logits(self, hidden: Tensor) -> Tensor:
        """Score every token of the vocabulary."""
        return product(hidden, self.head_weight, self.logits_bias, self._packed_head)

    @property
    def head_weight(self) -> Tensor:
        """One row per token: of the head, or of the tied embedding."""
        return self.tokens.weight if self.head is None else self.head.weight

    def pack_weights(self) -> None:
        """Pack weights for speed on a CPU, at the cost of memory; the model must not be trained."""
        if not packable(self.head_weight):
            return
        pack_layers(self)
        self._packed_head = pack(self.head_weight)

    def loss(
        self,
        hidden_BTD: Tensor,
        labels_BT: Tensor,
        *,
        smoothing: float,
        items: Tensor | float | None,
    ) -> Tensor:
        """Return the cross entropy per labelled position.

        Padding passes through the head too: selecting positions would give every batch its own
        shape, and a CPU compiles kernels for every new shape, which costs more than some padding.
        """
        if items is None:
            items = int((labels_BT != IGNORED).sum().clamp(min=1))
        logits_NV, label_N = self.logits(hidden_BTD).flatten(0, 1), labels_BT.flatten()
        if isinstance(items, Tensor):
            return smoothed_cross_entropy(logits_NV, label_N, smoothing) / items
        return smoothed_cross_entropy(logits_NV, label_N, smoothing, scale=1 / items)

    def penalty(self) -> Tensor | None:
        """Return the sum of the parts' terms for the training loss, or None."""
        parts = (m for m in self.modules() if isinstance(m, AttentionBase | Ponders))
        penalties = [penalty for part in parts if (penalty := part.penalty()) is not None]
        return torch.stack(penalties).sum() if penalties else None

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            std = module.embedding_dim**-0.5 if self.config.scale_embedding else 0.02
            init.normal_(module.weight, std=std)
        elif isinstance(module, TokenModel) and module.logits_bias is not None:
            init.zeros_(module.logits_bias)
        else:
            init_weights(module)


class Model(TokenModel, GenerationMixin):
    """A model with a decoder."""

    decoder: Stack

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.decoder_position = build_position(config)
        self.decoder_embedding_norm = build_embedding_norm(config)
        self.position_mlp = build_position_mlp(config)
        self.head = build_head(config)
        self.logits_bias = build_logits_bias(config)

    def real_tokens(self, tokens_BT: Tensor) -> Tensor | None:
        """Return the mask of real decoder inputs; None if no part needs it.

        The first token is always real: some models start with the padding token.
        """
        if not any(isinstance(part, Ponders) for part in self.decoder.modules()):
            return None
        real_BT = tokens_BT != self.config.pad_token_id
        real_BT[:, 0] = True
        # A padding token between real tokens counts as real, as it would in a cache.
        return real_BT.flip(1).cumsum(1).flip(1) > 0

    def embed_target(
        self,
        tokens_BT: Tensor,
        positions: Positions,
        recall: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Return the inputs of the decoder; `recall` as in `embed`."""
        norm = self.decoder_embedding_norm
        return self.embed(
            self.tokens, self.decoder_position, tokens_BT, positions, recall, norm=norm
        )

    def extend(
        self,
        tokens_BT: Tensor,
        state: DecoderState,
        *,
        count_B: Tensor | None = None,
        last: bool = False,
    ) -> Tensor:
        """Append tokens to every row; see `decoding.protocol.Backend.extend`."""
        rows, tokens = tokens_BT.shape
        counts = [tokens] * rows if count_B is None else [int(n) for n in count_B.tolist()]
        hidden: list[Tensor] = []
        start = 0
        while start < tokens:
            end = min(tokens, start + state.block)
            real = [min(max(n - start, 0), end - start) for n in counts]
            hidden.append(self._extend(tokens_BT[:, start:end], state, real))
            start = end
        hidden_BTD = torch.cat(hidden, dim=1) if len(hidden) > 1 else hidden[0]
        if last:
            row_B = torch.arange(rows, device=state.device)
            hidden_BTD = hidden_BTD[row_B, torch.tensor(counts, device=state.device) - 1][:, None]
        return self.logits(hidden_BTD)

    def _extend(self, tokens_BT: Tensor, state: DecoderState, counts: Sequence[int]) -> Tensor:
        step = state.step(tokens_BT.shape[1], counts)
        x_BTD = self.embed_target(
            tokens_BT, step.positions, lambda z_BTD: self._ring(state).extend(z_BTD, step)
        )
        seen: list[Tensor] | None = None if state.drafter is None else []
        index_BT = step.positions.index_BT
        sources = [each and each._replace(index_BT=index_BT) for each in state.sources]
        x_BTD = self.decoder.extend(x_BTD, state.caches, step, sources, seen)
        if state.drafter is not None and seen is not None:
            state.drafter.take_in(seen, state, step)
        state.advance(counts)
        return x_BTD

    def _ring(self, state: DecoderState) -> Ring:
        """Return the ring of embeddings for the positional MLP."""
        if state.ring is None:
            state.ring = Ring(
                state.rows,
                state.capacity,
                back=self.config.position_mlp - 1,
                like=self.tokens.weight,
                slack=state.slack,
            )
        return state.ring


def right_padding(attention_mask: Tensor | None) -> Tensor | None:
    """Convert a Hugging Face mask to `keep_BS`; None without padding."""
    if attention_mask is None:
        return None
    keep_BS = attention_mask.bool()
    if bool(keep_BS.all()):
        return None
    if bool((keep_BS[:, 1:] & ~keep_BS[:, :-1]).any()):
        raise InputError(
            "attention_mask: rows must be padded on the right; set tokenizer.padding_side = 'right'"
        )
    return keep_BS


def init_weights(module: nn.Module) -> None:
    """Initialise the parts that all models share."""
    if isinstance(module, nn.Linear):
        init.xavier_uniform_(module.weight)
        if module.bias is not None:
            init.zeros_(module.bias)
    elif isinstance(module, nn.RMSNorm):
        init.ones_(module.weight)
    elif isinstance(module, nn.LayerNorm):
        init.ones_(module.weight)
        init.zeros_(module.bias)
    elif isinstance(module, Resets):
        module.reset()
    elif isinstance(module, nn.GRU | nn.LSTM):
        for name, weight in module.named_parameters():
            if name.startswith("weight_ih"):
                init.xavier_uniform_(weight)
            elif name.startswith("weight_hh"):
                init.orthogonal_(weight)
            else:
                init.zeros_(weight)
    elif isinstance(module, Relative):
        bound = math.sqrt(6 / sum(module.weight_HKE.shape[1:]))
        init.uniform_(module.weight_HKE, -bound, bound)
        init.zeros_(module.content_bias)
        init.zeros_(module.place_bias)
