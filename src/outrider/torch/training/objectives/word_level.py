"""Word-level distillation: learn a teacher's token probabilities (Kim and Rush, 2016).

    loss = sum_t (1 - w) (-log p(y_t | y_<t, x)) + w sum_v q(v | y_<t, x) (-log p(v | y_<t, x))

q is the teacher on the same text, and w its share.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider.torch.models import Seq2Seq
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.objectives.base import Inputs, add_penalty
from outrider.torch.training.objectives.translation import TranslationObjective


class WordLevelObjective(TranslationObjective):
    """Predicts `labels` and the probabilities of a teacher with the same vocabulary.

    Args:
        teacher: The model to learn from; it is frozen.
        share: Weight of its probabilities; the labels have the rest.
    """

    def __init__(self, teacher: Seq2Seq, *, share: float) -> None:
        self.teacher, self.share = teacher.eval().requires_grad_(False), share

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        labels_BT = inputs["labels"]
        counted_BT = labels_BT != IGNORED
        model_inputs = {
            "input_ids": inputs["input_ids"],
            "attention_mask": inputs["attention_mask"],
            "decoder_input_ids": self.teacher.shift_right(labels_BT),
        }
        logits_NV = model(**model_inputs).logits[counted_BT].float()
        with torch.no_grad():
            target_NV = self.teacher(**model_inputs).logits[counted_BT].float().softmax(-1)
            target_NV *= self.share
            rest, vocab_size = 1 - self.share, target_NV.shape[1]
            label_N1 = labels_BT[counted_BT][:, None]
            weight_N1 = target_NV.new_full((), rest * (1 - smoothing)).expand(label_N1.shape)
            target_NV.scatter_add_(1, label_N1, weight_N1)
            target_NV += rest * smoothing / vocab_size
        summed = F.cross_entropy(logits_NV, target_NV, reduction="sum")
        return add_penalty(summed / divisor, model, self.count(inputs) / divisor)
