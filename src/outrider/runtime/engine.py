"""Who computes for a loaded model: the native core where it is installed and can, or PyTorch.

The device to compute on. PyTorch is slow to import and is asked only where a GPU may be.

Pack a model for the native core once, for every start after that.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from outrider.backends import native
from outrider.backends.native import NativeBackend
from outrider.backends.native_parts import missing
from outrider.backends.packed import PackedWeights
from outrider.errors import ConfigError, FallbackWarning, MissingExtraError, missing_extra, nearest
from outrider.files.hub import model_folder
from outrider.formats.folder import Parts, read_parts
from outrider.formats.readers.shortlist import Shortlist
from outrider.formats.weights import DTYPES

if TYPE_CHECKING:
    from outrider.torch.backend import TorchBackend

__all__ = [
    "BACKENDS",
    "VARIABLE",
    "Engine",
    "build_backend",
    "choose_device",
    "choose_engine",
    "export_native",
    "gpu_names",
    "lacking",
]

BACKENDS = ("auto", "torch", "native")
VARIABLE = "OUTRIDER_BACKEND"
"""Environment variable that says which backend `auto` is."""


class Engine(NamedTuple):
    """A backend and the numbers it computes with."""

    native: bool
    dtype: str
    asked: bool
    """Whether the user asked for it; then nothing else will do."""
    device: str = "cpu"


def choose_engine(backend: str | None, dtype: str | None, device: str = "cpu") -> Engine:
    """Settle what `load` was asked for.

    Without a wish it is the native core in int8, if that is installed and the model is for a CPU;
    otherwise PyTorch in float32.
    """
    key = "backend" if backend else VARIABLE
    backend = backend or os.environ.get(VARIABLE) or "auto"
    if backend not in BACKENDS:
        expected = ", ".join(BACKENDS)
        message = f"unknown {backend!r}{nearest(backend, BACKENDS)}; expected one of {expected}"
        raise ConfigError(key, message)
    known = list(dict.fromkeys([*DTYPES, *native.DTYPES]))
    if dtype is not None and dtype not in known:
        raise ConfigError("dtype", f"got {dtype!r}, expected one of {', '.join(known)}")
    if dtype == "int8" and backend == "auto":
        backend = "native"
    if backend == "native":
        _check_native(dtype, device)
        return Engine(True, dtype or "int8", True)
    if backend == "torch" and dtype == "int8":
        raise ConfigError("dtype", "int8 is for backend native; torch computes in float32")
    if backend == "auto" and dtype is None and device == "cpu" and native.is_installed():
        return Engine(True, "int8", False)
    return Engine(False, dtype or "float32", backend == "torch", device)


def build_backend(
    engine: Engine,
    parts: Parts,
    *,
    threads: int | None = None,
    ends: Sequence[int] = (),
    shortlist: Shortlist | None = None,
) -> "NativeBackend | TorchBackend":
    """Let an engine compute a model; what nobody asked for gives way where it cannot."""
    if engine.native and (engine.asked or lacking(parts) is None):
        return NativeBackend(
            parts, dtype=engine.dtype, threads=threads, ends=ends, keep=True, shortlist=shortlist
        )
    if shortlist is not None:
        raise ConfigError("shortlist", "is for backend native; torch scores every word")
    computer = _build_torch(engine, parts, threads, ends)
    if engine.native:
        warnings.warn(
            f"the native core does not compute {lacking(parts)}; decoding with torch in float32",
            FallbackWarning,
            stacklevel=3,
        )
    return computer


def lacking(parts: Parts) -> str | None:
    """Return what of a model the core cannot compute; None where it can all."""
    drafter = None if parts.drafter is None else parts.drafter.config
    ctc = None if parts.ctc is None else parts.ctc.config
    return missing(parts.model.config, drafter, ctc)


def _build_torch(
    engine: Engine, parts: Parts, threads: int | None, ends: Sequence[int]
) -> "TorchBackend":
    try:
        from outrider.torch.backend import build_torch
    except ModuleNotFoundError as error:
        purpose = "backend torch"
        if engine.native:
            purpose = f"{parts.model.folder}: a model with {lacking(parts)}"
        elif not engine.asked:
            purpose = "decoding without the native core"
        raise missing_extra(error, purpose) from None
    dtype = "float32" if engine.native else engine.dtype
    return build_torch(parts, dtype=dtype, device=engine.device, threads=threads, ends=ends)


def _check_native(dtype: str | None, device: str) -> None:
    native.check_installed()
    if device != "cpu":
        raise ConfigError("device", f"backend native computes on a CPU, not on {device}")
    if dtype is not None and dtype not in native.DTYPES:
        expected = " or ".join(native.DTYPES)
        raise ConfigError("dtype", f"got {dtype!r}; backend native computes in {expected}")


GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")
"""What the drivers of NVIDIA and AMD, and Windows below Linux, put there; without any, no GPU."""


def choose_device(name: str) -> str:
    """Settle the device of this name; `auto` is a GPU if there is one that PyTorch can use."""
    if name == "cpu":
        return name
    if find_spec("torch") is None:
        if name == "auto":
            return "cpu"
        raise MissingExtraError("PyTorch", "train", f"device {name!r}")
    if name == "auto" and not _may_have_gpu():
        return "cpu"
    from outrider.torch.device import has_device, has_gpu

    if name == "auto":
        return "cuda" if has_gpu() else "cpu"
    if not has_device(name):
        raise ConfigError(
            "device", f"got {name!r}, which this machine does not have; try auto or cpu"
        )
    return name


def gpu_names() -> list[str]:
    """Return the GPUs that PyTorch can use."""
    if find_spec("torch") is None or not _may_have_gpu():
        return []
    from outrider.torch import device

    return device.gpu_names()


def _may_have_gpu() -> bool:
    """Whether a driver is there; PyTorch says whether it can be used, but takes seconds to."""
    if sys.platform == "win32":
        return (Path(os.environ.get("SYSTEMROOT", "C:\\Windows")) / "System32/nvcuda.dll").exists()
    return any(Path(path).exists() for path in GPU_FILES)


def export_native(model: str | Path) -> Path:
    """Write the packed int8 weights beside a model; `load` finds them there."""
    parts = read_parts(model_folder(model))
    packed = PackedWeights(parts)
    return packed.write(NativeBackend(parts, threads=1).core)
