"""The device to compute on. PyTorch is slow to import and is asked only where a GPU may be."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from outrider.errors import ConfigError, MissingExtraError

__all__ = ["choose_device", "gpu_names"]

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
