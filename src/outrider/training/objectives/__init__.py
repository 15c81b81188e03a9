"""Objectives: what a model learns to predict from a batch, one file each."""

from outrider.training.objectives.base import IGNORED, Inputs, Objective, StatefulObjective
from outrider.training.objectives.ctc import CtcObjective
from outrider.training.objectives.drafter import DrafterObjective
from outrider.training.objectives.language_model import LanguageModelObjective
from outrider.training.objectives.masked_lm import MaskedLmObjective
from outrider.training.objectives.segments import SegmentObjective
from outrider.training.objectives.translation import TranslationObjective
from outrider.training.objectives.word_level import WordLevelObjective

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
