"""Next-token prediction over consecutive segments, with a memory carried between them.

loss = sum_t -log p(x_t | x_<t of this segment, memory of the segments before)

The memory was made by the weights of earlier updates, so it cannot be computed anew: checkpoints
keep it, and a resumed run goes on exactly.
"""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from outrider.errors import ModelError
from outrider.torch.models import LanguageModel
from outrider.torch.nn.stack.memory import Memory
from outrider.torch.training.objectives.base import IGNORED, Inputs

__all__ = ["SegmentObjective"]

_FILE = "memory-{}.safetensors"


class SegmentObjective:
    """Row i of a batch goes on where row i of the batch before ended."""

    def __init__(self) -> None:
        self.memory: Memory | None = None

    def count(self, inputs: Inputs) -> int:
        """Labels stand one column behind the inputs that predict them; the first is of none."""
        return int((inputs["labels"][:, 1:] != IGNORED).sum())

    def loss(self, model: nn.Module, inputs: Inputs, *, divisor: float, smoothing: float) -> Tensor:
        """One segment of every row; remembers it for the next."""
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
        """Write the memory of this process's rows."""
        if self.memory is not None:
            tensors = {name: x.contiguous() for name, x in self.memory._asdict().items()}
            save_file(tensors, folder / _FILE.format(process))

    def load(self, folder: Path, *, process: int) -> None:
        """Read the memory of this process's rows."""
        path = folder / _FILE.format(process)
        try:
            self.memory = Memory(**load_file(path))
        except (OSError, SafetensorError, TypeError) as error:
            raise ModelError(
                f"{path}: the memory of the run cannot be read ({error}); delete the folder to "
                "resume from the checkpoint before it"
            ) from None

    def _recall(self, model: nn.Module, input_BT: Tensor) -> Memory:
        if self.memory is None:
            inner = model.module if isinstance(model, DistributedDataParallel) else model
            assert isinstance(inner, LanguageModel)
            return inner.new_memory(input_BT.shape[0])
        states, known = self.memory
        return Memory(states.to(input_BT.device), known.to(input_BT.device))
