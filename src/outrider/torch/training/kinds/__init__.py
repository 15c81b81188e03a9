"""Kinds of trained models, one file each: data, model, objective, validation and files."""

from typing import Any

from outrider.run_config import RunConfig
from outrider.torch.training.kinds.base import Kind
from outrider.torch.training.kinds.ctc import CtcKind
from outrider.torch.training.kinds.drafter import DrafterKind
from outrider.torch.training.kinds.language_model import LanguageModelKind
from outrider.torch.training.kinds.masked_lm import MaskedLmKind
from outrider.torch.training.kinds.segment_memory import SegmentMemoryKind, has_memory
from outrider.torch.training.kinds.translation import TranslationKind

KINDS: dict[str, type[Kind[Any]]] = {
    "seq2seq": TranslationKind,
    "language_model": LanguageModelKind,
    "masked_lm": MaskedLmKind,
    "drafter": DrafterKind,
    "ctc": CtcKind,
}


def kind_of(config: RunConfig) -> Kind[Any]:
    """Return the kind of model that a run trains; reads the config of `model.start`."""
    if config.model.type == "language_model" and has_memory(config):
        return SegmentMemoryKind(config)
    return KINDS[config.model.type](config)
