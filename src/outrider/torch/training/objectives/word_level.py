"""Word-level distillation: learn what a teacher thinks of every word (Kim and Rush, 2016).

loss = sum_t (1 - w) (-log p(y_t | y_<t, x)) + w sum_v q(v | y_<t, x) (-log p(v | y_<t, x))

q is the teacher, shown the same text, and w its share.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider.torch.models import Seq2Seq
from outrider.torch.training.objectives.base import IGNORED, Inputs, add_penalty
from outrider.torch.training.objectives.translation import TranslationObjective

__all__ = ["WordLevelObjective"]


class WordLevelObjective(TranslationObjective):
    """An encoder-decoder predicts `labels`, and what another with the same words predicts.

    Args:
        teacher: A model that does not learn.
        share: What its opinion counts, beside that of the labels.
    """

    def __init__(self, teacher: Seq2Seq, *, share: float) -> None:
        self.teacher, self.share = teacher.eval().requires_grad_(False), share

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        """One pass of each over all positions at once."""
        labels_BT = inputs["labels"]
        counted_BT = labels_BT != IGNORED
        fed = {
            "input_ids": inputs["input_ids"],
            "attention_mask": inputs["attention_mask"],
            "decoder_input_ids": self.teacher.shift_right(labels_BT),
        }
        logits_NV = model(**fed).logits[counted_BT].float()
        with torch.no_grad():
            wanted_NV = self.teacher(**fed).logits[counted_BT].float().softmax(-1)
            wanted_NV *= self.share
            rest, words = 1 - self.share, wanted_NV.shape[1]
            label_N1 = labels_BT[counted_BT][:, None]
            one_N1 = wanted_NV.new_full((), rest * (1 - smoothing)).expand(label_N1.shape)
            wanted_NV.scatter_add_(1, label_N1, one_N1)
            wanted_NV += rest * smoothing / words
        summed = F.cross_entropy(logits_NV, wanted_NV, reduction="sum")
        return add_penalty(summed / divisor, model, self.count(inputs) / divisor)
