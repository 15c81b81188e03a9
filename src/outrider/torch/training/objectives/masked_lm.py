"""Masked prediction: hidden tokens from the tokens on both sides.

loss = sum_t -log p(x_t | x')        over the places t that were chosen (`data.masking`)
"""

from outrider.torch.training.objectives.base import IGNORED, Inputs
from outrider.torch.training.objectives.language_model import LanguageModelObjective

__all__ = ["MaskedLmObjective"]


class MaskedLmObjective(LanguageModelObjective):
    """Labels stand at the places that are asked for; a place predicts its own label."""

    def count(self, inputs: Inputs) -> int:
        """All labels; a batch without any counts as one, whose loss is zero."""
        return max(1, int((inputs["labels"] != IGNORED).sum()))
