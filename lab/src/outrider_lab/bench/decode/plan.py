"""The plan of `bench decode`: engines, batch sizes, orders and threads."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from outrider.errors import ModelError, OutriderError
from outrider_lab.bench.decode.engines import MODES, EnginePlan

ENGINES = (
    "outrider-torch",
    "outrider-native-int8",
    "outrider-native-float32",
    "ctranslate2-int8",
    "ctranslate2-float32",
    "transformers",
    "shallow-native-int8",
    "shallow-ctranslate2-int8",
)
"""Values of `--engines`. The last two run the model of `--shallow`."""
ORDERS = ("sorted", "unsorted")


class Setting(NamedTuple):
    """How sentences are batched, and the numbers of threads to measure."""

    batch: int
    order: str
    threads: tuple[int, ...]

    @property
    def name(self) -> str:
        """Its name in a report."""
        return f"batch {self.batch}, {self.order}" if self.batch > 1 else "batch 1"

    def batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """Split sentences of these lengths into batches of indices."""
        numbers = list(range(len(lengths)))
        if self.order == "sorted":
            numbers.sort(key=lambda number: lengths[number])
        return [numbers[at : at + self.batch] for at in range(0, len(numbers), self.batch)]


class Missing(NamedTuple):
    """An engine that was not measured, and the reason."""

    engine: str
    reason: str


def settings(
    batches: Sequence[int], orders: Sequence[str], threads: Sequence[int], *, all_threads: bool
) -> list[Setting]:
    """List the settings to measure.

    Args:
        batches: Batch sizes.
        orders: sorted (by length) or unsorted; batch size 1 has no order.
        threads: Numbers of threads.
        all_threads: Whether larger batches are measured at every number of threads, or only at
            the first.
    """
    result = []
    for batch in batches:
        counts = threads if all_threads or batch == 1 else threads[:1]
        chosen = orders if batch > 1 else ("unsorted",)
        result += [Setting(batch, order, tuple(counts)) for order in chosen]
    return result


@contextmanager
def plan_engines(
    model: Path,
    names: Sequence[str],
    threads: Sequence[int],
    *,
    shallow: Path | None = None,
    slow_once: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[list[EnginePlan], list[Missing]]]:
    """List the engines to start; exported models exist as long as the context.

    Args:
        model: Folder of the model.
        names: Names of engines, as in `ENGINES`.
        threads: Numbers of threads; each has its own process.
        shallow: Folder of a model with a shallow decoder.
        slow_once: Whether slow engines are started at the first number of threads only.
        environment: Environment variables of all processes.
    """
    plans, missing = [], []
    with tempfile.TemporaryDirectory() as working:
        for name in names:
            try:
                plan = _plan(name, model, shallow, Path(working))
            except OutriderError as error:
                missing.append(Missing(name, str(error)))
            else:
                plan = replace(plan, environment=environment or {})
                once = slow_once and plan.library in ("torch", "transformers")
                plans += [replace(plan, threads=count) for count in threads[: 1 if once else None]]
        yield plans, missing


def _plan(name: str, model: Path, shallow: Path | None, working: Path) -> EnginePlan:
    of_shallow = name.startswith("shallow-")
    if of_shallow:
        if shallow is None:
            raise ModelError("no model with a shallow decoder was given (--shallow FOLDER)")
        model = shallow
    if name == "transformers":
        folder = export_for_transformers(model, working / name)
        plan = EnginePlan(name, "transformers", folder, modes=("ar", "assisted"))
        if shallow is None:
            return plan
        return replace(plan, assistant=export_for_transformers(shallow, working / "assistant"))
    dtype = "int8" if name.endswith("-int8") else "float32"
    if "ctranslate2" in name:
        from outrider.torch.export import export_ctranslate2

        folder = export_ctranslate2(model, working / name, quantization=dtype)
        return EnginePlan(name, "ctranslate2", folder, dtype, shallow=of_shallow)
    if name == "outrider-torch":
        return EnginePlan(name, "torch", model, dtype, modes=MODES)
    modes = MODES if name == "outrider-native-int8" else MODES[:1]
    return EnginePlan(name, "native", model, dtype, modes=modes, shallow=of_shallow)


def export_for_transformers(model: Path, folder: Path) -> Path:
    """Export the model for transformers; suppressed tokens become a bias, as in CTranslate2."""
    import torch

    from outrider.runtime.options import GenerationSettings
    from outrider.text.tokenizer import load_tokenizer
    from outrider.torch.backend import TorchBackend
    from outrider.torch.export import to_marian
    from outrider.torch.models import Seq2Seq, load_model
    from outrider.torch.models.ctranslate2 import FORBIDDEN

    loaded = load_model(model)
    assert isinstance(loaded, Seq2Seq)
    twin = to_marian(loaded)
    with torch.no_grad():
        for token in GenerationSettings(model).defaults(TorchBackend(loaded))["suppress"]:
            twin.final_logits_bias[:, token] = FORBIDDEN
    twin.save_pretrained(folder)
    load_tokenizer(model).save(folder)
    return folder
