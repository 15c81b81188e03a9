"""Devices that PyTorch can use on this machine."""

import torch


def has_gpu() -> bool:
    """Whether PyTorch can use a GPU."""
    return torch.cuda.is_available()


def has_device(name: str) -> bool:
    """Whether PyTorch can use this device."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        return False
    return True


def gpu_names() -> list[str]:
    """Return the names of the GPUs that PyTorch can use."""
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
