"""Training in shares: every process holds its part of weights, gradients and optimizer (FSDP2).

The weights of a layer are gathered when it runs and let go after it; its gradients are summed
straight into the share that each process keeps. So a model may be larger than one device, by as
much as there are processes. Layers that do not run one after another, each by itself, are gathered
together: a reversible stack in the backward undoes all its layers in one step of autograd, one
layer in the place of many is never let go, and what asks for a penalty is read after the pass.

Weights are saved whole, in the form that everything else reads; the optimizer is saved in shares
(`torch.distributed.checkpoint`).

Layers that keep their input alone, and compute again in the backward what lies between.

Chen et al., 2016, arXiv:1604.06174. Random numbers are drawn as they were, so a run is the same to
the bit, with the memory of one layer in the place of all and about a third more time.

Keep glibc from giving memory back to the kernel between training steps.

A step allocates and frees the same large tensors over and over. By default glibc maps each of them
anew and trims its heap after, so the kernel zeroes the same pages thousands of times: a quarter of
the step on a CPU. Told to keep memory, it hands the same warm pages out again.

Steps of other shapes leave holes in such a heap. `return_memory` gives them back now and then, at
moments that are slow anyway.
"""

import ctypes
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from outrider.torch.models import LanguageModel
from outrider.torch.models.base import TokenModel
from outrider.torch.models.pretrained import PretrainedEncoder
from outrider.torch.nn.family.skip import SkippingStack
from outrider.torch.nn.layer.block import Block
from outrider.torch.nn.stack import Stack

__all__ = [
    "gathered",
    "gathered_parts",
    "keep_memory",
    "load_optimizer",
    "recompute_layers",
    "return_memory",
    "save_optimizer",
    "shard",
    "whole_weights",
]

_KEY = "optimizer"


def shard(model: nn.Module, device: torch.device) -> None:
    """Keep of every weight only the share of this process."""
    # PyTorch warns of changing such a view in place, which nothing here does.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    single = {weight for weight in model.parameters() if weight.ndim == 0}
    for weight in single:  # cannot be shared out: every process has it, and the mean gradient
        weight.register_post_accumulate_grad_hook(_average)  # type: ignore[no-untyped-call]
    for part, also in gathered_parts(model):
        fully_shard(part, mesh=mesh, ignored_params=single)
        for method in also:
            register_fsdp_forward_method(part, method)
    fully_shard(model, mesh=mesh, ignored_params=single)


def _average(weight: Tensor) -> None:
    assert weight.grad is not None
    dist.all_reduce(weight.grad)
    weight.grad /= dist.get_world_size()


def gathered_parts(model: nn.Module) -> list[tuple[nn.Module, tuple[str, ...]]]:
    """List what is gathered apart, inner parts first, and what else they are called by."""
    if not isinstance(model, TokenModel) or model.penalty() is not None:
        return []
    if isinstance(model, LanguageModel) and model.config.memory:
        return []
    if model.config.pondering is not None:  # what its layers ask for leaves them another way
        return []
    parts: list[tuple[nn.Module, tuple[str, ...]]] = []
    for stack in model.modules():
        if type(stack) in (Stack, SkippingStack):
            assert isinstance(stack, Stack)
            for block in stack.blocks:
                if block.cross is not None:
                    parts.append((block.cross, ("source",)))
                parts.append((block, ()))
        elif isinstance(stack, Stack):
            parts.append((stack, ("sources",)))
    return parts


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Hold all weights, so that processes may do different things with them."""
    parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(part is not model, recurse=False)


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return all weights, in the memory of the CPU; every process must ask."""
    known: dict[int, Tensor] = {}
    found: dict[str, Tensor] = {}
    for name, weight in model.state_dict(keep_vars=True).items():
        if id(weight) not in known:
            whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
            known[id(weight)] = whole.detach().cpu()
        found[name] = known[id(weight)]
    return found


def save_optimizer(model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    """Write the shares of all processes into one folder."""
    state = {_KEY: get_optimizer_state_dict(model, optimizer)}
    save(state, storage_writer=FileSystemWriter(folder, sync_files=False))  # `publish` syncs all


def load_optimizer(model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    """Read the share of this process."""
    state = get_optimizer_state_dict(model, optimizer)
    load({_KEY: state}, checkpoint_id=folder)
    set_optimizer_state_dict(model, optimizer, state)


def recompute_layers(model: nn.Module) -> None:
    """Let all layers of a model do so, also those of an encoder of another library."""
    for part in model.modules():
        if isinstance(part, Block):
            part.recompute = True
        elif isinstance(part, PretrainedEncoder) and part.stack is None and not part.freeze:
            part.model.gradient_checkpointing_enable({"use_reentrant": False})


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # from malloc.h
_MIB = 2**20


def keep_memory() -> bool:
    """Tell glibc to serve blocks up to 1 GiB from a heap it never trims; True if it agreed."""
    if not _has_glibc():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    # Some releases refuse a threshold above half a thread heap, 32 MiB.
    mapped = mallopt(_M_MMAP_THRESHOLD, 1024 * _MIB) or mallopt(_M_MMAP_THRESHOLD, 32 * _MIB)
    trimmed = mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    padded = mallopt(_M_TOP_PAD, 64 * _MIB)
    return bool(mapped and trimmed and padded)


def return_memory() -> None:
    """Give the kernel back every page of the heap that holds nothing."""
    if _has_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def _has_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"
