"""Next-token prediction by all layers, the lower ones only at first (`nn.next_tokens`).

loss = sum_l w_l(s) sum_t -log p(x_t | h_l,<t)        s: share of the updates that are done
"""

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from outrider.torch.training.objectives.base import Inputs, add_penalty
from outrider.torch.training.objectives.language_model import LanguageModelObjective


@runtime_checkable
class ScheduledObjective(Protocol):
    """An objective that changes during training."""

    def set_progress(self, progress: float) -> None:
        """Set the share of all updates that are done; called before every update."""
        ...


class IntermediateObjective(LanguageModelObjective):
    """Lower layers predict too, with weights that depend on the progress of training."""

    def __init__(self) -> None:
        self.progress = 0.0

    def set_progress(self, progress: float) -> None:
        self.progress = progress

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        output = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs.get("attention_mask"),
            labels=inputs["labels"],
            label_smoothing=smoothing,
            num_items_in_batch=divisor,
            progress=self.progress,
        )
        return add_penalty(output.loss, model, self.count(inputs) / divisor)
