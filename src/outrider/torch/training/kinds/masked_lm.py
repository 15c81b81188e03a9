"""Masked language models: hidden tokens from the tokens on both sides.

loss = sum_t -log p(x_t | x')        over the chosen positions t (`data.labels`)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from outrider.data.config import Task
from outrider.data.labels import Masking
from outrider.data.prepared import Prepared
from outrider.text.tokenizer.vocabulary import MaskTokenizer, add_mask
from outrider.torch.models import MaskedLm, MaskedLmConfig
from outrider.torch.training.kinds.base import Batches, OwnFolderKind
from outrider.torch.training.objective import Inputs, Objective
from outrider.torch.training.start import refuse_start


class MaskedLmKind(OwnFolderKind[MaskedLm]):
    task: Task = "language_model"
    metric = "perplexity"
    config_class = MaskedLmConfig
    model_class = MaskedLm
    given: ClassVar = {**OwnFolderKind.given, "bos_token_id": "bos_id", "mask_token_id": "mask_id"}
    pipeline = "fill-mask"
    description = "A masked language model"
    example = """It reads the source of a translator:

```yaml
data: {{source_tokenizer: {{folder: path/to/{name}}}}}
model: {{type: seq2seq, encoder: {{pretrained: path/to/{name}, freeze: false}}}}
```"""

    def check(self) -> None:
        refuse_start(self.config)
        super().check()

    def longest_row(self, data: Mapping[str, Any]) -> tuple[str, int]:
        """A row has `<s>` and `</s>`."""
        key, longest = super().longest_row(data)
        return key, longest + 1

    def tokenizer(self, prepared: Prepared) -> MaskTokenizer:
        return add_mask(prepared.tokenizer)

    def blank_config(self, vocab_size: int) -> MaskedLmConfig:
        """`vocab_size` does not count the mask token."""
        config: MaskedLmConfig = super().blank_config(vocab_size + 1)
        return config

    def row_options(self, model: MaskedLm, prepared: Prepared, *, train: bool) -> dict[str, Any]:
        """In validation the masking is BERT's."""
        tokenizer, options = (
            self.tokenizer(prepared),
            super().row_options(model, prepared, train=train),
        )
        if train:
            masking = Masking.of(tokenizer, self.config.train.mask, seed=self.config.seed)
        else:
            masking = Masking.of(tokenizer)
        return {**options, "masking": masking}

    def objective(self) -> Objective:
        return MaskedLmObjective()

    def ratios(self, model: MaskedLm, batches: Batches) -> dict[str, tuple[int, int]]:
        objective, right, labels = self.objective(), 0, 0
        for inputs in batches(None):
            right += model.count_right(**inputs)
            labels += objective.count(inputs)
        return {"accuracy": (right, labels)}


class MaskedLmObjective(Objective):
    """Predicts `labels` at their own positions."""

    def count(self, inputs: Inputs) -> int:
        """All labels; 1 for a batch without any, whose loss is zero."""
        return max(1, super().count(inputs))
