"""Teacher forcing: every target token from the source and all target tokens before it.

loss = sum_t -log p(y_t | y_<t, x)
"""

from torch import Tensor, nn

from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.objectives.base import Inputs, add_penalty


class TranslationObjective:
    """Predicts `labels` with an encoder-decoder, whose decoder input is `labels` shifted right."""

    def count(self, inputs: Inputs) -> int:
        return int((inputs["labels"] != IGNORED).sum())

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        output = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            labels=inputs["labels"],
            label_smoothing=smoothing,
            num_items_in_batch=divisor,
        )
        return add_penalty(output.loss, model, self.count(inputs) / divisor)
