"""What `generate` hands over: texts that are begun, and what they are translated from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outrider.errors import InputError

__all__ = ["Prompt", "Row"]


@dataclass
class Row:
    """One text in the making."""

    place: int
    """Which row of the batch it is."""
    tokens: list[int]
    """As transformers sees them: with padding in front, where a batch has some."""
    padding: int = 0

    @property
    def real(self) -> list[int]:
        """Its tokens without padding."""
        return self.tokens[self.padding :]


@dataclass(frozen=True)
class Prompt:
    """The rows of a batch, and for an encoder-decoder their sources."""

    model: PreTrainedModel
    rows: list[Row]
    memory_BSD: Tensor | None
    """The encoder's output; None for a decoder alone."""
    mask_BS: Tensor | None

    @classmethod
    def of(cls, model: PreTrainedModel, input_ids: Tensor, given: dict[str, Any]) -> "Prompt":
        """Take apart what `generate` has prepared."""
        mask = given.get("attention_mask")
        if model.config.is_encoder_decoder:
            rows = [Row(place, tokens) for place, tokens in enumerate(input_ids.tolist())]
            return cls(model, rows, given["encoder_outputs"][0], mask)
        padding = [0] * len(input_ids) if mask is None else (mask == 0).sum(1).tolist()
        if mask is not None and bool((mask[:, 1:] < mask[:, :-1]).any()):
            raise InputError("attention_mask: rows must be padded on the left")
        rows = [
            Row(n, row, pad)
            for n, (row, pad) in enumerate(zip(input_ids.tolist(), padding, strict=True))
        ]
        if not all(row.real for row in rows):
            raise InputError("attention_mask: a row is nothing but padding")
        return cls(model, rows, None, None)

    @property
    def keep_BS(self) -> Tensor | None:
        """Which places of the sources are real; None where all are."""
        mask = self.mask_BS
        return None if mask is None or bool(mask.all()) else mask.bool()

    def ask(self, place: int, tokens: Sequence[int]) -> Tensor:
        """Let transformers itself score the token after a text of one row."""
        text_1T = torch.tensor([tokens], device=self.model.device)
        if self.memory_BSD is None:
            logits: Tensor = self.model(input_ids=text_1T, use_cache=False).logits
            return logits[0, -1].float()
        one = slice(place, place + 1)
        logits = self.model(
            encoder_outputs=(self.memory_BSD[one],),
            attention_mask=None if self.mask_BS is None else self.mask_BS[one],
            decoder_input_ids=text_1T,
            use_cache=False,
        ).logits
        return logits[0, -1].float()
