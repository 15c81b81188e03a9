"""Every model, on every device PyTorch has."""

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.decoding.protocol import State
from outrider.errors import ModelError
from outrider.models import LanguageModel, Seq2Seq
from outrider.models.state import DecoderState

__all__ = ["TorchBackend"]

PACK_UP_TO = 2 << 30


class TorchBackend:
    """Implements `decoding.protocol.Backend` with a model of ours."""

    def __init__(self, model: Seq2Seq | LanguageModel, *, frozen: bool = False) -> None:
        """Compute with `model`; `frozen` says that its weights will not change any more.

        Then weights of up to `PACK_UP_TO` bytes are kept a second time, laid out for this CPU.
        """
        self.model = model.eval()
        if frozen and sum(weight.nbytes for weight in model.parameters()) <= PACK_UP_TO:
            model.pack_weights()
        config = model.config
        eos, pad, start = config.eos_token_id, config.pad_token_id, config.first_token
        eos = eos[0] if isinstance(eos, list) else eos
        ids: dict[str, int] = {"eos_token_id": eos, "pad_token_id": pad, "first token": start}
        for name, value in ids.items():
            if not 0 <= value < config.vocab_size:
                raise ModelError(f"{name} in config.json is {value}, not a token of this model")
        self.vocab_size: int = config.vocab_size
        self.start, self.eos, self.pad = start, eos, pad
        self.max_length: int | None = config.max_positions if config.position == "learned" else None

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.tokens.weight.device

    @torch.inference_mode()
    def encode(self, source: Sequence[Sequence[int]], *, capacity: int) -> DecoderState:
        """Open one row per source."""
        if isinstance(self.model, LanguageModel):
            return self.model.open(len(source), capacity=capacity)
        longest = max(len(row) for row in source)
        padded = [[*row, *[self.pad] * (longest - len(row))] for row in source]
        source_BS = torch.tensor(padded, device=self.device)
        keep_BS = None
        if any(len(row) < longest for row in source):
            length_B1 = torch.tensor([len(row) for row in source], device=self.device)[:, None]
            keep_BS = torch.arange(longest, device=self.device) < length_B1
        memory_BSD = self.model.encode(source_BS, keep_BS)
        return self.model.open(memory_BSD, keep_BS, capacity=capacity)

    @torch.inference_mode()
    def extend(
        self,
        tokens_BT: Tensor,
        state: State,
        *,
        count_B: Tensor | None = None,
        last: bool = False,
    ) -> Tensor:
        """Append tokens to every row; logits in float32 whatever the weights are."""
        assert isinstance(state, DecoderState), "a state of another backend"
        return self.model.extend(tokens_BT, state, count_B=count_B, last=last).float()
