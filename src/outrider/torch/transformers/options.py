"""Checks of the options of `generate`, and the texts to continue."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation import (
    GenerationConfig,
    GenerationMode,
    LogitsProcessorList,
    StoppingCriteriaList,
)

from outrider.errors import InputError, UnsupportedError

PROCESSORS = (
    *("MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor"),
    *("RepetitionPenaltyLogitsProcessor", "NoRepeatNGramLogitsProcessor"),
    *("SequenceBiasLogitsProcessor", "NoBadWordsLogitsProcessor"),
    *("ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor"),
    *("SuppressTokensAtBeginLogitsProcessor", "SuppressTokensLogitsProcessor"),
    *("InfNanRemoveLogitsProcessor", "LogitNormalization", "ExponentialDecayLengthPenalty"),
)
"""Processors that depend on a single row, so that rows can be scored separately."""
CRITERIA = ("MaxLengthCriteria", "EosTokenCriteria")
GIVEN = (
    *("encoder_outputs", "attention_mask", "position_ids"),
    *("past_key_values", "use_cache", "logits_to_keep"),
)
"""Arguments of `generate` that are honoured or do not affect the tokens."""
REFUSED = (
    *("return_dict_in_generate", "output_scores", "output_logits", "output_attentions"),
    *("output_hidden_states", "cache_implementation", "prefill_chunk_size"),
)
"""Options of a generation config that change what is returned or computed."""


def check_model(model: PreTrainedModel) -> None:
    """Refuse a model whose greedy text cannot be reproduced exactly."""
    name = type(model).__name__
    if model.training:
        raise UnsupportedError(f"{name} is in training mode with random dropout; call model.eval()")
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in model.parameters()}
    if dtypes != {"float32"}:
        others = ", ".join(sorted(dtypes - {"float32"}))
        raise UnsupportedError(
            f"{name} computes in {others}, where near-ties are too common to be exact; load it "
            "with dtype=torch.float32"
        )
    if len({weight.device for weight in model.parameters()}) > 1:
        raise UnsupportedError(f"{name} is on several devices; move it to one")


def check_dropped(given: dict[str, Any]) -> None:
    """Refuse options that `generate` accepts but does not pass to a custom method."""
    for option in ("streamer", "assistant_model", "synced_gpus"):
        if given.get(option):
            _refuse(option)


def check_options(
    config: GenerationConfig,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    model_kwargs: dict[str, Any],
) -> None:
    """Refuse options that would not be honoured, by name."""
    for option in ("num_beams", "num_return_sequences"):
        if (getattr(config, option) or 1) > 1:
            _refuse(f"{option}={getattr(config, option)}", f"; pass {option}=1")
    if config.do_sample:
        _refuse("do_sample", "; pass do_sample=False")
    mode = config.get_generation_mode()
    if mode != GenerationMode.GREEDY_SEARCH:
        _refuse(mode.value.replace("_", " "))
    for option in REFUSED:
        if getattr(config, option, None):
            _refuse(option)
    for processor in processors:
        if type(processor).__name__ not in PROCESSORS or not _is_original(processor):
            _refuse(f"the logits processor {type(processor).__name__}")
    for criterion in criteria:
        if type(criterion).__name__ not in CRITERIA or not _is_original(criterion):
            _refuse(f"the stopping criterion {type(criterion).__name__}")
    for key, value in model_kwargs.items():
        if key not in GIVEN and value is not None:
            _refuse(key)
    past = model_kwargs.get("past_key_values")
    if past is not None and past.get_seq_length():
        _refuse("past_key_values")


def processors_of(processors: LogitsProcessorList, row: int) -> LogitsProcessorList:
    """Return the processors for one row of the batch."""
    own = LogitsProcessorList()
    for processor in processors:
        padding = getattr(processor, "prompt_ignore_length", None)
        if isinstance(padding, Tensor):  # since transformers 5.23: the padding of every row
            processor = copy(processor)
            processor.prompt_ignore_length = padding[row : row + 1]
        own.append(processor)
    return own


def _is_original(part: Any) -> bool:
    """Return whether an object is of a class of transformers, not of the same name."""
    return type(part).__module__.startswith("transformers.generation.")


def _refuse(option: str, fix: str = "") -> None:
    raise UnsupportedError(f"tandem decoding in transformers does not honour {option}{fix}")


@dataclass
class Row:
    """One text being generated."""

    place: int
    """Index in the batch."""
    tokens: list[int]
    """With the left padding of the batch."""
    padding: int = 0

    @property
    def real(self) -> list[int]:
        """Tokens without padding."""
        return self.tokens[self.padding :]


@dataclass(frozen=True)
class Prompt:
    """The rows of a batch, and the sources of an encoder-decoder."""

    model: PreTrainedModel
    rows: list[Row]
    memory_BSD: Tensor | None
    """The encoder's output; None for a decoder-only model."""
    mask_BS: Tensor | None

    @classmethod
    def of(cls, model: PreTrainedModel, input_ids: Tensor, given: dict[str, Any]) -> "Prompt":
        """Build from the arguments that `generate` prepared."""
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
            raise InputError("attention_mask: a row contains only padding")
        return cls(model, rows, None, None)

    @property
    def keep_BS(self) -> Tensor | None:
        """Mask of real source tokens; None without padding."""
        mask = self.mask_BS
        return None if mask is None or bool(mask.all()) else mask.bool()

    def reference_logits(self, place: int, tokens: Sequence[int]) -> Tensor:
        """Score the token after a text of one row with transformers."""
        text_1T = torch.tensor([tokens], device=self.model.device)
        if self.memory_BSD is None:
            logits: Tensor = self.model(input_ids=text_1T, use_cache=False).logits
            return logits[0, -1].float()
        row = slice(place, place + 1)
        logits = self.model(
            encoder_outputs=(self.memory_BSD[row],),
            attention_mask=None if self.mask_BS is None else self.mask_BS[row],
            decoder_input_ids=text_1T,
            use_cache=False,
        ).logits
        return logits[0, -1].float()
