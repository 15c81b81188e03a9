"""Chooses and builds the execution backend of a model: the native core, or PyTorch.

PyTorch is slow to import, so it is imported only if it is used or if there may be a GPU.
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
from outrider.formats.weights import DTYPES

if TYPE_CHECKING:
    from outrider.formats.readers.bergamot import Shortlist
    from outrider.torch.backend import TorchBackend

BACKENDS = ("auto", "torch", "native")
VARIABLE = "OUTRIDER_BACKEND"
"""Environment variable with the backend that `auto` means."""


class BackendChoice(NamedTuple):
    """A backend with its dtype and device."""

    native: bool
    dtype: str
    required: bool
    """Whether the user named the backend; then there is no fallback."""
    device: str = "cpu"


def choose_backend(backend: str | None, dtype: str | None, device: str = "cpu") -> BackendChoice:
    """Resolve the options of `load`.

    By default the native core in int8 if it is installed and the device is a CPU, else PyTorch in
    float32.
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
        return BackendChoice(True, dtype or "int8", True)
    if backend == "torch" and dtype == "int8":
        raise ConfigError("dtype", "int8 is for backend native; torch computes in float32")
    if backend == "auto" and dtype is None and device == "cpu" and native.is_installed():
        return BackendChoice(True, "int8", False)
    return BackendChoice(False, dtype or "float32", backend == "torch", device)


def build_backend(
    choice: BackendChoice,
    parts: Parts,
    *,
    threads: int | None = None,
    ends: Sequence[int] = (),
    shortlist: "Shortlist | None" = None,
) -> "NativeBackend | TorchBackend":
    """Build the chosen backend; fall back to PyTorch unless the native core is required."""
    if choice.native and (choice.required or lacking(parts) is None):
        return NativeBackend(
            parts, dtype=choice.dtype, threads=threads, ends=ends, keep=True, shortlist=shortlist
        )
    if shortlist is not None:
        raise ConfigError("shortlist", "is for backend native; torch scores every token")
    backend = _build_torch(choice, parts, threads, ends)
    if choice.native:
        warnings.warn(
            f"the native core does not compute {lacking(parts)}; decoding with torch in float32",
            FallbackWarning,
            stacklevel=3,
        )
    return backend


def lacking(parts: Parts) -> str | None:
    """Return a part of a model that the core does not support; None if there is none."""
    drafter = None if parts.drafter is None else parts.drafter.config
    ctc = None if parts.ctc is None else parts.ctc.config
    return missing(parts.model.config, drafter, ctc)


def _build_torch(
    choice: BackendChoice, parts: Parts, threads: int | None, ends: Sequence[int]
) -> "TorchBackend":
    try:
        from outrider.torch.backend import build_torch
    except ModuleNotFoundError as error:
        purpose = "backend torch"
        if choice.native:
            purpose = f"{parts.model.folder}: a model with {lacking(parts)}"
        elif not choice.required:
            purpose = "decoding without the native core"
        raise missing_extra(error, purpose) from error
    dtype = "float32" if choice.native else choice.dtype
    return build_torch(parts, dtype=dtype, device=choice.device, threads=threads, ends=ends)


def _check_native(dtype: str | None, device: str) -> None:
    native.check_installed()
    if device != "cpu":
        raise ConfigError("device", f"backend native computes on a CPU, not on {device}")
    if dtype is not None and dtype not in native.DTYPES:
        expected = " or ".join(native.DTYPES)
        raise ConfigError("dtype", f"got {dtype!r}; backend native computes in {expected}")


GPU_FILES = tuple(map(Path, ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")))
"""Device files of NVIDIA, AMD and WSL drivers; without any of them there is no GPU."""


def choose_device(name: str) -> str:
    """Resolve a device name; `auto` is a GPU if PyTorch can use one."""
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
    """Return the names of GPUs that PyTorch can use."""
    if find_spec("torch") is None or not _may_have_gpu():
        return []
    from outrider.torch import device

    return device.gpu_names()


def _may_have_gpu() -> bool:
    """Whether a GPU driver is installed; importing PyTorch to check it takes seconds."""
    if sys.platform == "win32":
        return (Path(os.environ.get("SYSTEMROOT", "C:\\Windows")) / "System32/nvcuda.dll").exists()
    return any(map(Path.exists, GPU_FILES))


def export_native(model: str | Path) -> Path:
    """Write packed int8 weights beside a model, where `load` finds them."""
    parts = read_parts(model_folder(model))
    packed = PackedWeights(parts)
    return packed.write(NativeBackend(parts, threads=1).core)
