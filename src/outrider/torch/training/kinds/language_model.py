"""Language models: next-token prediction on running text.

    loss = sum_{t>0} -log p(x_t | x_<t)

With `train.intermediate_loss` all layers predict, the lower ones only at first
(`models.language_model`); s is the share of the updates that are done.

    loss = sum_l w_l(s) sum_t -log p(x_t | h_l,<t)
"""

from typing import Any, ClassVar

from torch import nn

from outrider.data.config import Task
from outrider.data.labels import Completions
from outrider.data.prepared import Prepared
from outrider.torch.models import LanguageModel, LanguageModelConfig
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.card import loaded
from outrider.torch.training.kinds.base import OwnFolderKind
from outrider.torch.training.objective import Inputs, Objective


class LanguageModelKind(OwnFolderKind[LanguageModel]):
    task: Task = "language_model"
    metric = "perplexity"
    decodes = True
    config_class = LanguageModelConfig
    model_class = LanguageModel
    given: ClassVar = {**OwnFolderKind.given, "bos_token_id": "bos_id"}
    pipeline = "text-generation"
    description = "A language model"
    example = loaded('print(model.generate(["Once upon a time"]))')

    def row_options(
        self, model: LanguageModel, prepared: Prepared, *, train: bool
    ) -> dict[str, Any]:
        options = super().row_options(model, prepared, train=train)
        return {**options, "completions": self.completions(prepared)}

    def completions(self, prepared: Prepared) -> Completions | None:
        """Return the markers of completions, if only completions are trained on."""
        marks = self.config.train.completions
        return None if marks is None else Completions.of(marks, prepared)

    def objective(self) -> Objective:
        return LanguageModelObjective()

    def training_objective(self) -> Objective:
        if self.config.train.intermediate_loss:
            return IntermediateObjective()
        return self.objective()


class LanguageModelObjective(Objective):
    """Predicts `labels`, aligned with the inputs: position t predicts the label at t + 1."""

    def count(self, inputs: Inputs) -> int:
        """All labels but the first, which has no context."""
        return int((inputs["labels"][:, 1:] != IGNORED).sum())


class IntermediateObjective(LanguageModelObjective):
    """Lower layers predict too, with weights that depend on the progress of training."""

    def __init__(self) -> None:
        self.progress = 0.0

    def set_progress(self, progress: float) -> None:
        self.progress = progress

    def run(
        self, model: nn.Module, inputs: Inputs, divisor: float, smoothing: float, **options: Any
    ) -> Any:
        return super().run(model, inputs, divisor, smoothing, progress=self.progress)
