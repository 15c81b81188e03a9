"""What this installation has and will use, and what is wrong with it.

Nothing is guessed: `load` itself is asked, and the core computes. What is missing but not needed is
no problem; what would make a command fail is.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any

from outrider.backends import native
from outrider.backends.native import NativeBackend
from outrider.backends.native_parts import missing
from outrider.errors import FallbackWarning, OutriderError
from outrider.files.hub import model_folder
from outrider.formats.folder import CTC, DRAFTER, model_files, read_model
from outrider.formats.safetensors import Weight
from outrider.formats.weights import read_weights, weight_files
from outrider.runtime.device import choose_device, gpu_names
from outrider.runtime.engine import VARIABLE, choose_engine
from outrider.runtime.load import load
from outrider.runtime.provenance import machine, versions
from outrider.runtime.self_check import check_native
from outrider.runtime.translator import Translator

__all__ = ["OPTIONAL", "examine"]

OPTIONAL = {
    "datasets": ("hub", "corpora from the Hugging Face Hub"),
    "matplotlib": ("plot", "pictures"),
    "tensorboard": ("plot", "train.tensorboard"),
    "ctranslate2": ("peers", "export --to ctranslate2, and a peer in bench decode"),
    "gymnasium": ("examples", "examples/memory-rl"),
    "scikit-learn": ("examples", "examples/images"),
}
"""Packages some features need: the extra that brings each, and what it is for."""
STEP = 16
"""Tokens by which a cache of the native core grows."""


def examine(model: str | Path | None = None) -> dict[str, Any]:
    """Return what was found, ready for JSON; `problems` lists what is wrong, a sentence each.

    Args:
        model: A model folder or Hub id, to learn in addition how `load` will compute it.
    """
    problems: list[str] = []
    found: dict[str, Any] = {
        "versions": versions(),
        "machine": machine(),
        "gpus": gpu_names(),
        "environment": {name: os.environ.get(name) for name in (VARIABLE, native.INSTRUCTION_SET)},
        "native": _examine_native(problems),
        "load": _examine_load(problems),
        "optional": {name: _version(name) for name in OPTIONAL},
    }
    if model is not None:
        found["model"] = _examine_model(model, problems)
    return {**found, "problems": list(dict.fromkeys(problems))}


def _examine_native(problems: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"installed": native.is_installed()}
    if (fault := native.fault()) is not None:
        if native.is_damaged():
            problems.append(f"outrider-native {fault}")
        return {**found, "reason": fault}
    try:
        found["instruction_sets"] = native.instruction_sets()
        found["instruction_set"] = native.choose_instruction_set()
        check = check_native()
    except OutriderError as error:
        problems.append(str(error))
        return {**found, "reason": str(error)}
    if check.fault is not None:
        problems.append(f"the native core computes wrongly here: {check.fault}")
    return {**found, "check": {**asdict(check), "fault": check.fault}}


def _examine_load(problems: list[str]) -> dict[str, Any]:
    """Ask for whatever `load` takes by itself, for a model that the core can compute."""
    place = choose_device("auto")
    try:
        engine = choose_engine(None, None, place)
        if engine.native:
            native.choose_instruction_set()
    except OutriderError as error:
        problems.append(str(error))
        return {"reason": str(error)}
    name = "native" if engine.native else "torch"
    reason = None if engine.native else _why_torch(place)
    return {"backend": name, "dtype": engine.dtype, "device": place, "reason": reason}


def _why_torch(place: str) -> str:
    if os.environ.get(VARIABLE) == "torch":
        return f"{VARIABLE} asks for it"
    if place != "cpu":
        return "the native core computes on a CPU only"
    return f"the native core {'does not load' if native.is_damaged() else 'is not installed'}"


def _examine_model(name: str | Path, problems: list[str]) -> dict[str, Any]:
    try:
        folder = model_folder(name)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FallbackWarning)
            loaded = load(folder)
    except OutriderError as error:
        problems.append(str(error))
        return {"name": str(name), "reason": str(error)}
    said = [str(one.message) for one in caught if issubclass(one.category, FallbackWarning)]
    parts = {"drafter": DRAFTER, "ctc": CTC}
    return {
        "name": str(name),
        "kind": "encoder-decoder" if isinstance(loaded, Translator) else "language model",
        "weights": _measure(read_model(folder).weights, model_files(folder)),
        **{part: _measure_part(folder / path) for part, path in parts.items()},
        **_describe_backend(loaded.backend, said, reads=isinstance(loaded, Translator)),
    }


def _describe_backend(backend: Any, said: list[str], *, reads: bool) -> dict[str, Any]:
    """Say who computes and, where that is PyTorch, why; `lacking` is what the core cannot do."""
    if isinstance(backend, NativeBackend):
        return {
            "backend": "native",
            "dtype": backend.dtype,
            "instruction_set": backend.instruction_set,
            "memory": _measure_memory(backend, reads),
        }
    sides = [None if one is None else one.config for one in (backend.drafter, backend.ctc_decoder)]
    return {
        "backend": "torch",
        "dtype": str(backend.model.dtype).removeprefix("torch."),
        "device": str(backend.device),
        "reason": said[0] if said else _why_torch(backend.device.type),
        "lacking": missing(backend.config, *sides),
    }


def _measure_memory(backend: NativeBackend, reads: bool) -> dict[str, Any]:
    """Count what the loaded model takes, and what each token of a text does."""
    core = backend.core

    def tokens(**options: bool) -> dict[str, int]:
        def measure(source: int, target: int) -> int:
            return backend.encode([[0] * source], capacity=target, **options).nbytes

        source = STEP if reads else 0
        least = measure(source, STEP)
        return {
            "source": (measure(2 * source, STEP) - least) // STEP,
            "target": (measure(source, 2 * STEP) - least) // STEP,
        }

    return {
        "packed_bytes": core.bytes - core.embedding_bytes,
        "embedding_bytes": core.embedding_bytes,
        "mapped": core.mapped,
        "token_bytes": tokens(),
        "drafting_token_bytes": tokens(drafting=True) if backend.drafts else None,
    }


def _measure_part(folder: Path) -> dict[str, int] | None:
    """Count the parameters of a decoder beside a model; None where there is none."""
    return _measure(read_weights(folder), weight_files(folder)) if folder.is_dir() else None


def _measure(weights: Mapping[str, Weight], files: Sequence[Path]) -> dict[str, int]:
    counted = [w for w in weights.values() if w.scale is not None or "float" in w.kind]
    return {
        "parameters": sum(prod(one.shape) for one in counted),
        "bytes": sum(path.stat().st_size for path in files),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
