"""Next-token prediction: every token from all tokens before it.

loss = sum_{t>0} -log p(x_t | x_<t)
"""

from torch import Tensor, nn

from outrider.training.objectives.base import IGNORED, Inputs, add_penalty
from outrider.training.objectives.completions import Completions, labels_of

__all__ = ["LanguageModelObjective"]


class LanguageModelObjective:
    """Labels stand where their tokens stand; position t predicts the label at t + 1."""

    def __init__(self, completions: Completions | None = None) -> None:
        self.completions = completions

    def count(self, inputs: Inputs) -> int:
        """All labels but the first, which nothing comes before."""
        return int((self.labels(inputs)[:, 1:] != IGNORED).sum())

    def labels(self, inputs: Inputs) -> Tensor:
        """What is learnt: all tokens, or those of completions."""
        return labels_of(inputs, self.completions)

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        """One pass over all positions at once."""
        output = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs.get("attention_mask"),
            labels=self.labels(inputs),
            label_smoothing=smoothing,
            num_items_in_batch=divisor,
        )
        return add_penalty(output.loss, model, self.count(inputs) / divisor)
