"""CTC with glancing (GLAT, Qian et al., 2021, arXiv:2008.07905): all tokens in one pass.

    path = viterbi(z(x), y)                         z: a first pass without gradients
    known = a random share of path                   share = ratio * (slots where argmax z != path)
    loss = -log p(y | x, known)                     CTC over all slots of a second pass

The more tokens are wrong, the more are revealed. A joint model adds the target's own loss (teacher
forcing).
"""

import torch
from torch import Tensor, nn

from outrider.torch.models.base import right_padding
from outrider.torch.models.ctc import Ctc
from outrider.torch.nn.ctc import viterbi
from outrider.torch.nn.loss import IGNORED
from outrider.torch.training.objectives.base import Inputs


class CtcObjective:
    """Trains a parallel decoder on `labels`; tokens are revealed in training only."""

    def count(self, inputs: Inputs) -> int:
        return int((inputs["labels"] != IGNORED).sum())

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        ctc = getattr(model, "module", model)  # unwrap DDP
        assert isinstance(ctc, Ctc)
        keep_BS = right_padding(inputs["attention_mask"])
        memory_BSD = ctc.encode(inputs["input_ids"], keep_BS)
        known_BU = None
        if ctc.training:
            known_BU = glance(ctc, memory_BSD, keep_BS, inputs["labels"])
            ctc.steps += 1
        output = model(
            attention_mask=inputs["attention_mask"],
            labels=inputs["labels"],
            memory=memory_BSD,
            known=known_BU,
            label_smoothing=smoothing,
            num_items_in_batch=divisor,
        )
        loss: Tensor = output.loss
        return loss


@torch.no_grad()
def glance(ctc: Ctc, memory_BSD: Tensor, keep_BS: Tensor | None, labels_BT: Tensor) -> Tensor:
    """Choose the revealed tokens: some slots of the best path, -1 elsewhere."""
    ctc.eval()
    logits_BUV = ctc.slots(memory_BSD, keep_BS)
    ctc.train()
    path_BU = viterbi(
        logits_BUV,
        labels_BT,
        ctc.lengths(labels_BT),
        ctc.count(memory_BSD, keep_BS),
        blank=ctc.config.blank,
    )
    path_logit_BU = logits_BUV.gather(2, path_BU.clamp(min=0)[..., None])[..., 0]
    wrong_BU = (path_logit_BU < logits_BUV.amax(-1)) & (path_BU >= 0)
    share_B1 = (wrong_BU.sum(1, keepdim=True) * ctc.reveal).round()
    chance_BU = torch.rand(path_BU.shape, device=path_BU.device).masked_fill(path_BU < 0, 2.0)
    return path_BU.masked_fill(chance_BU.argsort(1).argsort(1) >= share_B1, -1)
