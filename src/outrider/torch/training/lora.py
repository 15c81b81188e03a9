"""Low-rank adapters: a narrow product learns beside each weight, which itself stays as it is.

    y = W x + (alpha / rank) B A x

`peft` puts them into a model. At the end of a run the mean of what the averaged checkpoints add,
(alpha / rank) B A, is added to W, and the model has its own shape again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from outrider.errors import ConfigError, MissingExtraError
from outrider.run_config import LoraConfig
from outrider.torch.nn.linear import Linear

__all__ = ["add_adapters", "merge_adapters"]

NAME = "default"


def add_adapters(model: nn.Module, config: LoraConfig) -> None:
    """Put adapters beside the weights of all layers, and freeze everything else."""
    try:
        import peft
    except ModuleNotFoundError:
        raise MissingExtraError("peft", "lora", "model.lora") from None
    targets = [
        name
        for name, module in model.named_modules()
        if isinstance(module, Linear) and _part(name) in config.parts
    ]
    if not targets:
        raise ConfigError("model.lora.parts", f"this model has no {' or '.join(config.parts)}")
    peft.inject_adapter_in_model(
        peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            lora_dropout=config.dropout,
            target_modules=targets,
        ),
        model,
        adapter_name=NAME,
    )


def merge_adapters(model: nn.Module, folders: Sequence[Path]) -> None:
    """Add the mean of what these checkpoints learnt to the weights, and take the adapters out."""
    adapted = {name: layer for name, layer in model.named_modules() if hasattr(layer, "lora_A")}
    added: dict[str, Tensor] = {}
    for folder in folders:
        model.load_state_dict(load_file(folder / "model.safetensors"))
        for name, layer in adapted.items():
            # The mean of A times the mean of B would be another product than the mean of both.
            delta = _delta(layer).double() / len(folders)
            added[name] = added[name] + delta if name in added else delta
    with torch.no_grad():
        for name, layer in adapted.items():
            own: Any = layer.base_layer
            own.weight.copy_(own.weight.double() + added[name])
            model.set_submodule(name, own)


def _delta(layer: Any) -> Tensor:
    delta: Tensor = layer.get_delta_weight(NAME).detach()
    return delta


def _part(name: str) -> str:
    """Name the part of a layer that a module stands in: `decoder.blocks.0.cross.q` is in cross."""
    words = name.split(".")
    return words[3] if words[1:2] == ["blocks"] and len(words) > 4 else ""
