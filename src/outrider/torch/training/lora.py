"""Low-rank adapters (LoRA): a trained low-rank product beside each frozen weight.

    y = W x + (alpha / rank) B A x

`peft` adds them to a model. At the end of a run, the mean of (alpha / rank) B A over the averaged
checkpoints is added to W, and the adapters are removed.
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

NAME = "default"


def add_adapters(model: nn.Module, config: LoraConfig) -> None:
    """Add adapters to the weights of all layers, and freeze all other weights."""
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
    """Add the mean adapter of these checkpoints to the weights, and remove the adapters."""
    adapted = {name: layer for name, layer in model.named_modules() if hasattr(layer, "lora_A")}
    mean: dict[str, Tensor] = {}
    for folder in folders:
        model.load_state_dict(load_file(folder / "model.safetensors"))
        for name, layer in adapted.items():
            # The mean of the products B A differs from the product of the means.
            delta = _delta(layer).double() / len(folders)
            mean[name] = mean[name] + delta if name in mean else delta
    with torch.no_grad():
        for name, layer in adapted.items():
            base: Any = layer.base_layer
            base.weight.copy_(base.weight.double() + mean[name])
            model.set_submodule(name, base)


def _delta(layer: Any) -> Tensor:
    delta: Tensor = layer.get_delta_weight(NAME).detach()
    return delta


def _part(name: str) -> str:
    """Name the part of a layer that holds a module: `cross` for `decoder.blocks.0.cross.q`."""
    path = name.split(".")
    return path[3] if path[1:2] == ["blocks"] and len(path) > 4 else ""
