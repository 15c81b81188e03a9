"""The decoder-only language model.

With `memory: M` it reads long texts segment by segment with a memory of the last M tokens
(`nn.stack.memory`). Without a memory, and when decoding, the same weights run with a sliding window
of M in one segment.

In training it may also predict further tokens, and from lower layers (Al-Rfou et al.,
2018, arXiv:1808.04444). Loss and logits outside training are those of the last layer and the next
token.

    loss = 1/N sum_l w_l sum_k c_k sum_t -log p_k(x_(t+k) | h_lt)      c_1 = 1, the others 1/2
    p_k(. | h) = softmax(E W_k norm(h))                                W_1 = 1
    w_n = 1        w_l = max(0, 1 - 2 n s / l)                         below the last layer n

h_l is the output of layer l, norm the last norm, E the head of the model, N the number of predicted
tokens, and s the share of training that is over. The weight of a layer falls to 0 at s = l / 2n,
lower layers first; from half of the training on only the last layer predicts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
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
from outrider.torch.nn.position import Positions
from outrider.torch.nn.stack.memory import Memory, run_segment

FURTHER_WEIGHT = 0.5
"""Loss weight of tokens after the next one."""


class NextTokens(nn.Module):
    """One matrix for each further token; used by the training loss only."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        # Plain layers: never packed for decoding.
        further = [nn.Linear(width, width, bias=False) for _ in range(tokens - 1)]
        self.further = nn.ModuleList(further)

    def forward(self, hidden_BTD: Tensor, ahead: int) -> Tensor:
        """Map hidden states to those that predict the token `ahead` places further."""
        turned_BTD: Tensor = self.further[ahead - 2](hidden_BTD)
        return turned_BTD


def layer_weights(layers: int, progress: float) -> list[float]:
    """Return the loss weights of the layers below the last after `progress` of the training."""
    return [max(0.0, 1 - 2 * layers * progress / layer) for layer in range(1, layers)]


@dataclass
class SegmentOutput(CausalLMOutput):
    """Output of a segment, and the memory for the next one."""

    memory: Memory | None = None


class LanguageModel(Model):
    """Predicts each token from the tokens before it."""

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
        """Return hidden states of whole sequences; `seen` collects the output of each layer."""
        positions = Positions.upto(tokens_BT.shape[1], tokens_BT.device)
        x_BTD = self.embed_target(tokens_BT, positions)
        return self.decoder(x_BTD, positions, self.real_tokens(tokens_BT), seen=seen)

    def new_memory(self, rows: int, tokens: int | None = None) -> Memory:
        """Return an empty memory, by default with the size of the config."""
        tokens = self.config.memory if tokens is None else tokens
        if not self.config.memory:
            raise InputError("this model has no memory; train one with model.memory above 0")
        return Memory.empty(self.decoder, rows, tokens)

    def read_segment(self, tokens_BT: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Run the next segment of every row; return hidden states and the new memory.

        The start token begins a document: its row forgets everything before.
        """
        positions = Positions.upto(tokens_BT.shape[1], tokens_BT.device)
        x_BTD = self.embed_target(tokens_BT, positions)
        return run_segment(self.decoder, x_BTD, tokens_BT == self.config.bos_token_id, memory)

    def open(self, rows: int, *, capacity: int, slack: int = SLACK) -> DecoderState:
        """Return the state of `rows` empty rows for up to `capacity` tokens."""
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
        """Predict the next tokens; in training with labels, return only the loss.

        Args:
            input_ids: Tokens, padded on the right.
            attention_mask: 1 for tokens that are not padding.
            labels: `input_ids`, or -100 where unlabelled; shifted here, as in Hugging Face. An
                extra column is the label of the last token.
            label_smoothing: Weight of the uniform distribution in the loss.
            num_items_in_batch: Divisor of the summed loss; by default the number of labels.
            memory: Memory of earlier tokens (`new_memory` at first); rows are then segments that
                continue the previous ones.
            progress: Share of the training that is over. If given, lower layers predict too, in
                training without a memory.
        """
        if input_ids is None:
            raise InputError("forward needs input_ids")
        right_padding(attention_mask)  # checks the side; a causal model needs no mask
        # From half of the training on, the weights of lower layers are 0.
        lower = self.training and progress is not None and progress < 0.5
        seen: list[Tensor] | None = [] if lower else None
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
        """Yield the normed outputs of lower layers with a positive loss weight."""
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
        """Return the weighted loss over layers and, in training, over further tokens.

        All but the plain loss are recomputed in the backward, one after another: each would store
        as much as the logits. So the peak memory is that of the plain loss.
        """
        tokens = layers[-1][0].shape[1]
        next_BT = _ahead(labels_BT, 1, tokens)
        if items is None:
            items = int((next_BT != IGNORED).sum().clamp(min=1))
        parts: list[Tensor] = []
        for ahead in range(self.config.next_tokens if self.training else 1, 0, -1):
            label_BT = _ahead(labels_BT, ahead, tokens)
            for x_BTD, weight in layers if ahead > 1 else layers[:-1]:
                share = items / (weight * (FURTHER_WEIGHT if ahead > 1 else 1.0))
                inputs = (x_BTD, label_BT, ahead, smoothing, share)
                parts.append(
                    checkpoint(
                        self._predict_further,
                        *inputs,
                        use_reentrant=False,
                        preserve_rng_state=False,
                    )
                )
        plain = self.loss(layers[-1][0], next_BT, smoothing=smoothing, items=items)
        return sum(parts, start=plain)

    def _predict_further(
        self,
        x_BTD: Tensor,
        label_BT: Tensor,
        ahead: int,
        smoothing: float,
        items: Tensor | float,
    ) -> Tensor:
        """Return the loss of the token `ahead` places further."""
        if self.next_tokens is not None and ahead > 1:
            x_BTD = self.next_tokens(x_BTD, ahead)
        return self.loss(x_BTD, label_BT, smoothing=smoothing, items=items)

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """Support Hugging Face's `generate`, without a cache."""
        return {"input_ids": input_ids, "attention_mask": kwargs.get("attention_mask")}


def _ahead(labels_BT: Tensor, places: int, tokens: int) -> Tensor:
    """Shift labels left by `places`, to the positions that predict them."""
    return F.pad(labels_BT[:, places:], (0, places), value=IGNORED)[:, :tokens]
