"""Next-token prediction: every token from all tokens before it.

loss = sum_{t>0} -log p(x_t | x_<t)
"""

from torch import Tensor, nn

from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.objectives.base import Inputs, add_penalty


class LanguageModelObjective:
    """Predicts `labels`, aligned with the inputs: position t predicts the label at t + 1."""

    def count(self, inputs: Inputs) -> int:
        """All labels but the first, which has no context."""
        return int((inputs["labels"][:, 1:] != IGNORED).sum())

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        output = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs.get("attention_mask"),
            labels=inputs["labels"],
            label_smoothing=smoothing,
            num_items_in_batch=divisor,
        )
        return add_penalty(output.loss, model, self.count(inputs) / divisor)
