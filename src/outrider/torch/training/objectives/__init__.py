"""Objectives: the targets of a batch and the loss of predicting them, one file each."""

from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.objectives.base import Inputs, Objective, StatefulObjective
from outrider.torch.training.objectives.ctc import CtcObjective
from outrider.torch.training.objectives.drafter import DrafterObjective
from outrider.torch.training.objectives.language_model import LanguageModelObjective
from outrider.torch.training.objectives.masked_lm import MaskedLmObjective
from outrider.torch.training.objectives.segments import SegmentObjective
from outrider.torch.training.objectives.translation import TranslationObjective
from outrider.torch.training.objectives.word_level import WordLevelObjective

__all__ = [
    "IGNORED",
    "CtcObjective",
    "DrafterObjective",
    "Inputs",
    "LanguageModelObjective",
    "MaskedLmObjective",
    "Objective",
    "SegmentObjective",
    "StatefulObjective",
    "TranslationObjective",
    "WordLevelObjective",
]
