"""Objectives: what a model learns to predict from a batch, one file each."""

from outrider.training.objectives.base import IGNORED, Inputs, Objective
from outrider.training.objectives.language_model import LanguageModelObjective
from outrider.training.objectives.translation import TranslationObjective

__all__ = ["IGNORED", "Inputs", "LanguageModelObjective", "Objective", "TranslationObjective"]
