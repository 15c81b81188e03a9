"""What `generate` may be asked for: each option is honoured, or refused by name.

What `generate` hands over: texts that are begun, and what they are translated from.
"""

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

__all__ = ["Prompt", "Row", "check_dropped", "check_model", "check_options", "processors_of"]

PROCESSORS = (
    *("MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor"),
    *("RepetitionPenaltyLogitsProcessor", "NoRepeatNGramLogitsProcessor"),
    *("SequenceBiasLogitsProcessor", "NoBadWordsLogitsProcessor"),
    *("ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor"),
    *("SuppressTokensAtBeginLogitsProcessor", "SuppressTokensLogitsProcessor"),
    *("InfNanRemoveLogitsProcessor", "LogitNormalization", "ExponentialDecayLengthPenalty"),
)
"""Those that look at one row alone, so that its text may be asked about out of turn."""
CRITERIA = ("MaxLengthCriteria", "EosTokenCriteria")
GIVEN = (
    *("encoder_outputs", "attention_mask", "position_ids"),
    *("past_key_values", "use_cache", "logits_to_keep"),
)
"""What `generate` hands over and is honoured, or has no say in the tokens."""
REFUSED = (
    *("return_dict_in_generate", "output_scores", "output_logits", "output_attentions"),
    *("output_hidden_states", "cache_implementation", "prefill_chunk_size"),
)
"""Options of a generation config that would change what is returned or computed."""


def check_model(model: PreTrainedModel) -> None:
    """Refuse a model whose greedy text could not be promised."""
    name = type(model).__name__
    if model.training:
        raise UnsupportedError(
            f"{name} is in training mode, where dropout draws; call model.eval()"
        )
    kinds = {str(one.dtype).removeprefix("torch.") for one in model.parameters()}
    if kinds != {"float32"}:
        found = ", ".join(sorted(kinds - {"float32"}))
        raise UnsupportedError(
            f"{name} computes in {found}, where near-ties are too common to be exact; load it with "
            "dtype=torch.float32"
        )
    if len({one.device for one in model.parameters()}) > 1:
        raise UnsupportedError(f"{name} lies on several devices; put it on one")


def check_dropped(given: dict[str, Any]) -> None:
    """Refuse what `generate` takes but does not hand to a callable: it would go unnoticed."""
    for option in ("streamer", "assistant_model", "synced_gpus"):
        if given.get(option):
            _refuse(option)


def check_options(
    config: GenerationConfig,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    model_kwargs: dict[str, Any],
) -> None:
    """Refuse whatever would not be honoured, by name."""
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
    for one in processors:
        if type(one).__name__ not in PROCESSORS or not _is_theirs(one):
            _refuse(f"the logits processor {type(one).__name__}")
    for one in criteria:
        if type(one).__name__ not in CRITERIA or not _is_theirs(one):
            _refuse(f"the stopping criterion {type(one).__name__}")
    for key, value in model_kwargs.items():
        if key not in GIVEN and value is not None:
            _refuse(key)
    past = model_kwargs.get("past_key_values")
    if past is not None and past.get_seq_length():
        _refuse("past_key_values")


def processors_of(processors: LogitsProcessorList, row: int) -> LogitsProcessorList:
    """Return the processors as they stand for one row of the batch, whose text is asked alone."""
    own = LogitsProcessorList()
    for one in processors:
        padding = getattr(one, "prompt_ignore_length", None)
        if isinstance(padding, Tensor):  # since transformers 5.23: the padding of every row
            one = copy(one)
            one.prompt_ignore_length = padding[row : row + 1]
        own.append(one)
    return own


def _is_theirs(part: Any) -> bool:
    """Whether a processor is transformers' own, not somebody's of the same name."""
    return type(part).__module__.startswith("transformers.generation.")


def _refuse(option: str, fix: str = "") -> None:
    raise UnsupportedError(f"tandem decoding in transformers does not honour {option}{fix}")


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
