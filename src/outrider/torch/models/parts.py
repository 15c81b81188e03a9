"""The parts of PyTorch models as a folder would hold them: descriptions, and arrays by name."""

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from outrider.formats.folder import Part, Parts
from outrider.formats.safetensors import Weight
from outrider.torch.models.ctc import Ctc, split_weights
from outrider.torch.models.drafter import Drafter
from outrider.torch.models.language_model import LanguageModel
from outrider.torch.models.seq2seq import Seq2Seq

__all__ = ["parts_of"]


def parts_of(
    model: Seq2Seq | LanguageModel, drafter: Drafter | None = None, ctc: Ctc | None = None
) -> Parts:
    """Return a model, its drafter and its CTC decoder as they lie in memory, in float32."""
    return Parts(
        _part(model),
        None if drafter is None else _part(drafter),
        None if ctc is None else _part(ctc),
    )


def _part(model: PreTrainedModel) -> Part[Any]:
    own, _ = split_weights(model.state_dict())
    weights = {name: _weight(tensor) for name, tensor in own.items()}
    return Part(Path(type(model).__name__), model.config, weights)


def _weight(tensor: Tensor) -> Weight:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.is_floating_point():
        return Weight("float32", tensor.float().numpy())
    return Weight(str(tensor.dtype).removeprefix("torch."), tensor.numpy())
