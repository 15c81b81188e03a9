"""Parallel decoders: CTC with glancing (GLAT, Qian et al., 2021, arXiv:2008.07905).

    path = viterbi(z(x), y)                         z: a first pass without gradients
    known = a random share of path                   share = ratio * (slots where argmax z != path)
    loss = -log p(y | x, known)                     CTC over all slots of a second pass

The more tokens are wrong, the more are revealed. A joint model adds the target's own loss (teacher
forcing).
"""

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from outrider.data.prepared import Prepared
from outrider.formats.folder import model_files
from outrider.formats.weights import weight_files
from outrider.text.tokenizer import load_tokenizer
from outrider.torch.backend import TorchBackend
from outrider.torch.models import Ctc, CtcConfig, Seq2Seq
from outrider.torch.models.base import right_padding
from outrider.torch.models.ctc import split_weights
from outrider.torch.nn.ctc import viterbi
from outrider.torch.training.kinds.side_decoder import SideDecoderKind, copy_files
from outrider.torch.training.objective import Inputs, Objective, unwrapped
from outrider.torch.training.start import target_folder


class CtcKind(SideDecoderKind[Ctc]):
    name = "ctc"
    other = "drafter"
    metric = "bleu"
    decode_options: ClassVar = {"mode": "parallel"}
    config_class = CtcConfig
    title = "Parallel decoder"
    about = (
        '`ctc` holds a parallel decoder of {parameters:,} parameters: `mode="parallel"` writes '
        "all tokens at once."
    )

    def bind(self, config: CtcConfig, target: Any, folder: Path) -> Ctc:
        assert isinstance(target, Seq2Seq)
        target.requires_grad_(config.joint)
        return Ctc(config).bind(target)

    def objective(self) -> Objective:
        return CtcObjective()

    def backend(self, model: Ctc) -> TorchBackend:
        return TorchBackend(model.target, ctc=model)

    def write(self, model: Ctc, prepared: Prepared, folder: Path) -> str:
        """A joint model has new weights of the target."""
        if not model.config.joint:
            return super().write(model, prepared, folder)
        target = target_folder(self.config)
        if model_files(target) != weight_files(target):  # of another format: write ours
            load_tokenizer(target).save(folder)
        else:
            copy_files(target, folder, leave_out="*.safetensors*")
        own, target_weights = split_weights(model.state_dict())
        model.target.save_pretrained(folder, state_dict=target_weights)
        model.save_pretrained(folder / self.name, state_dict=own)
        other = target / self.other
        if not other.is_dir():
            return ""
        return f"left out {other}: its target's weights have changed; train it again"


class CtcObjective(Objective):
    """Trains a parallel decoder on `labels`; tokens are revealed in training only."""

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        ctc: Ctc = unwrapped(model)
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
