"""Next-token prediction over consecutive segments, with a memory carried between them.

    loss = sum_t -log p(x_t | x_<t of this segment, memory of the segments before)

The memory depends on the weights of earlier updates and cannot be recomputed, so checkpoints save
it.
"""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from outrider.errors import ModelError
from outrider.torch.models import LanguageModel
from outrider.torch.nn.loss import IGNORED
from outrider.torch.nn.stack.memory import Memory
from outrider.torch.training.objectives.base import Inputs

_FILE = "memory-{}.safetensors"


class SegmentObjective:
    """Row i of a batch continues row i of the batch before."""

    def __init__(self) -> None:
        self.memory: Memory | None = None

    def count(self, inputs: Inputs) -> int:
        """All labels but the first column, which is not predicted."""
        return int((inputs["labels"][:, 1:] != IGNORED).sum())

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        input_BT = inputs["input_ids"]
        output = model(
            input_ids=input_BT,
            labels=inputs["labels"],
            label_smoothing=smoothing,
            num_items_in_batch=divisor,
            memory=self._recall(model, input_BT),
        )
        self.memory = output.memory
        loss: Tensor = output.loss
        return loss

    def save(self, folder: Path, *, process: int) -> None:
        if self.memory is not None:
            tensors = {name: x.contiguous() for name, x in self.memory._asdict().items()}
            save_file(tensors, folder / _FILE.format(process))

    def load(self, folder: Path, *, process: int) -> None:
        path = folder / _FILE.format(process)
        try:
            self.memory = Memory(**load_file(path))
        except (OSError, SafetensorError, TypeError) as error:
            raise ModelError(
                f"{path}: the memory of the run cannot be read ({error}); delete the folder to "
                "resume from the checkpoint before it"
            ) from error

    def _recall(self, model: nn.Module, input_BT: Tensor) -> Memory:
        if self.memory is None:
            inner = model.module if isinstance(model, DistributedDataParallel) else model
            assert isinstance(inner, LanguageModel)
            return inner.new_memory(input_BT.shape[0])
        states, known = self.memory
        return Memory(states.to(input_BT.device), known.to(input_BT.device))
