"""Masked prediction: hidden tokens from the tokens on both sides.

loss = sum_t -log p(x_t | x')        over the chosen positions t (`data.labels`)
"""

from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.objectives.base import Inputs
from outrider.torch.training.objectives.language_model import LanguageModelObjective


class MaskedLmObjective(LanguageModelObjective):
    """Predicts `labels` at their own positions."""

    def count(self, inputs: Inputs) -> int:
        """All labels; 1 for a batch without any, whose loss is zero."""
        return max(1, int((inputs["labels"] != IGNORED).sum()))
