"""What `Seq2Seq` and `LanguageModel` share beyond their words: cached decoding."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import GenerationMixin

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
from outrider.torch.models.words import WordModel
from outrider.torch.nn.cache.ring import Ring
from outrider.torch.nn.family.halting import Ponders
from outrider.torch.nn.stack import Stack

__all__ = ["Model", "right_padding"]


class Model(WordModel, GenerationMixin):
    """A decoder with target embeddings and an output head."""

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
        """Return which tokens given to the decoder are no padding; None where it does not care.

        The first never is: some models begin with the token that others pad with.
        """
        if not any(isinstance(part, Ponders) for part in self.decoder.modules()):
            return None
        real_BT = tokens_BT != self.config.pad_token_id
        real_BT[:, 0] = True
        # Between real tokens the same word is no padding: a cache would take it in as well.
        return real_BT.flip(1).cumsum(1).flip(1) > 0

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
        x_BTD = self.embed(
            self.tokens,
            self.decoder_position,
            tokens_BT,
            step.positions,
            lambda z_BTD: self._ring(state).extend(z_BTD, step),
            norm=self.decoder_embedding_norm,
        )
        seen: list[Tensor] | None = None if state.drafter is None else []
        index_BT = step.positions.index_BT
        sources = [one and one._replace(index_BT=index_BT) for one in state.sources]
        x_BTD = self.decoder.extend(x_BTD, state.caches, step, sources, seen)
        if state.drafter is not None and seen is not None:
            state.drafter.take_in(seen, state, step)
        state.advance(counts)
        return x_BTD

    def _ring(self, state: DecoderState) -> Ring:
        """Return where `state` keeps the embeddings that the positional MLP looks back at."""
        if state.ring is None:
            weight = self.tokens.weight
            state.ring = Ring(
                state.rows,
                state.capacity,
                back=self.config.position_mlp - 1,
                width=weight.shape[1],
                dtype=weight.dtype,
                device=weight.device,
                slack=state.slack,
            )
        return state.ring


def right_padding(attention_mask: Tensor | None) -> Tensor | None:
    """Turn a Hugging Face mask into `keep_BS`; None where nothing is padded."""
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
