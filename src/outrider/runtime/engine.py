"""Who computes for a loaded model: the native core where it is installed and can, or PyTorch."""

import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from outrider.backends import native
from outrider.backends.native import NativeBackend
from outrider.backends.native_parts import missing
from outrider.errors import ConfigError, FallbackWarning, missing_extra, nearest
from outrider.formats.folder import Parts
from outrider.formats.readers.shortlist import Shortlist
from outrider.formats.weights import DTYPES

if TYPE_CHECKING:
    from outrider.torch.backend import TorchBackend

__all__ = ["BACKENDS", "VARIABLE", "Engine", "build_backend", "choose_engine", "lacking"]

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
        from outrider.torch.engine import build_torch
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
