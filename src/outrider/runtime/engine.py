"""Who computes for a loaded model: the native core where it is installed and can, or PyTorch."""

import os
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch

from outrider.backends import native
from outrider.backends.native import NativeBackend
from outrider.backends.native_parts import missing
from outrider.backends.torch import TorchBackend
from outrider.errors import ConfigError, FallbackWarning, nearest
from outrider.models import Drafter, LanguageModel, Seq2Seq
from outrider.models.ctc import Ctc
from outrider.models.weights import DTYPES

__all__ = ["BACKENDS", "VARIABLE", "Engine", "build_backend", "choose_device", "choose_engine"]

BACKENDS = ("auto", "torch", "native")
VARIABLE = "OUTRIDER_BACKEND"
"""Environment variable that says which backend `auto` is."""


class Engine(NamedTuple):
    """A backend and the numbers it computes with."""

    native: bool
    dtype: str
    asked: bool
    """Whether the user asked for it; then nothing else will do."""


def choose_device(name: str) -> torch.device:
    """Find the device of this name; `auto` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(name)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError):
        raise ConfigError(
            "device", f"got {name!r}, which this machine does not have; try auto or cpu"
        ) from None
    return place


def choose_engine(backend: str | None, dtype: str | None, device: torch.device) -> Engine:
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
    if backend == "auto" and dtype is None and device.type == "cpu" and native.is_installed():
        return Engine(True, "int8", False)
    return Engine(False, dtype or "float32", backend == "torch")


def build_backend(
    engine: Engine,
    model: Seq2Seq | LanguageModel,
    *,
    drafter: Drafter | None = None,
    ctc: Ctc | None = None,
    threads: int | None = None,
    ends: Sequence[int] = (),
) -> TorchBackend | NativeBackend:
    """Let an engine compute a model; what nobody asked for gives way where it cannot."""
    if engine.native:
        lacking = None if engine.asked else missing(model, drafter, ctc)
        if lacking is None:
            return NativeBackend(
                model, drafter=drafter, ctc=ctc, dtype=engine.dtype, threads=threads, ends=ends
            )
        warnings.warn(
            f"the native core does not compute {lacking}; decoding with torch in float32",
            FallbackWarning,
            stacklevel=3,
        )
    return TorchBackend(model, drafter=drafter, ctc=ctc, frozen=True, ends=ends)


def _check_native(dtype: str | None, device: torch.device) -> None:
    native.check_installed()
    if device.type != "cpu":
        raise ConfigError("device", f"backend native computes on a CPU, not on {device}")
    if dtype is not None and dtype not in native.DTYPES:
        expected = " or ".join(native.DTYPES)
        raise ConfigError("dtype", f"got {dtype!r}; backend native computes in {expected}")
