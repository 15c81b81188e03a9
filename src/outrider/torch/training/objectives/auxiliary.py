"""Next-token prediction by all layers, the lower ones for a while (`nn.next_tokens`).

loss = sum_l w_l(s) sum_t -log p(x_t | h_l,<t)        s: how much of the training is over
"""

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from outrider.torch.training.objectives.base import Inputs, add_penalty
from outrider.torch.training.objectives.language_model import LanguageModelObjective

__all__ = ["IntermediateObjective", "ScheduledObjective"]


@runtime_checkable
class ScheduledObjective(Protocol):
    """An objective that changes as the training goes on."""

    def set_progress(self, progress: float) -> None:
        """Take in, before every update, which share of all updates is done."""
        ...


class IntermediateObjective(LanguageModelObjective):
    """Layers below the last predict too; what they count follows from how far the training is."""

    def __init__(self) -> None:
        self.progress = 0.0

    def set_progress(self, progress: float) -> None:
        """Set how far the training is."""
        self.progress = progress

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        """One pass over all positions at once; outside training that of the last layer alone."""
        output = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs.get("attention_mask"),
            labels=inputs["labels"],
            label_smoothing=smoothing,
            num_items_in_batch=divisor,
            progress=self.progress,
        )
        return add_penalty(output.loss, model, self.count(inputs) / divisor)
