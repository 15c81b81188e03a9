"""Checkpoint averaging: the mean of the weights a run passed through at its end.

    w = (w_1 + ... + w_n) / n

It costs nothing at inference and takes the noise of the last updates out of the model.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from outrider.errors import ModelError

__all__ = ["average_weights"]


def average_weights(folders: Sequence[Path]) -> dict[str, Tensor]:
    """Average the `model.safetensors` of the folders, one tensor at a time, in float64."""
    files = [_open(folder / "model.safetensors") for folder in folders]
    names = list(files[0].keys())
    for file, folder in zip(files, folders, strict=True):
        if set(file.keys()) != set(names):
            raise ModelError(f"{folder}: holds other tensors than {folders[0]}; average one run")
    return {name: _mean([file.get_tensor(name) for file in files]) for name in names}


def _mean(tensors: list[Tensor]) -> Tensor:
    first = tensors[0]
    if not first.is_floating_point() or len(tensors) == 1:
        return first
    total = first.to(torch.float64)
    for tensor in tensors[1:]:
        total += tensor
    return (total / len(tensors)).to(first.dtype)


def _open(path: Path) -> Any:
    if not path.is_file():
        raise ModelError(f"{path}: no such file; a checkpoint to average holds its weights there")
    try:
        return safe_open(str(path), framework="pt")
    except SafetensorError as error:
        raise ModelError(f"{path}: damaged or not safetensors ({error})") from None
