"""Memory of training: sharding (FSDP2), recomputation of activations, and the allocator.

Sharding: every process keeps its share of weights, gradients and optimizer. The weights of a layer
are gathered when it runs and released after it; its gradients are reduced into the shares. Parts
that do not run as separate consecutive layers are gathered together: a reversible stack recomputes
all its layers in one autograd step, a shared layer is always in use, and penalties are read after
the pass. Weights are saved whole, the optimizer in shares (`torch.distributed.checkpoint`).

Recomputation (Chen et al., 2016, arXiv:1604.06174): layers keep only their input and compute again
in the backward pass. Random states are restored, so results are identical, with the memory of one
layer and about a third more time.

Allocator: a step allocates and frees the same large tensors. By default glibc maps each of them
again and trims its heap, so the kernel zeroes the same pages repeatedly: a quarter of the step on a
CPU. `keep_memory` makes glibc reuse the pages; `return_memory` releases the holes that other shapes
leave.
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

_KEY = "optimizer"


def shard(model: nn.Module, device: torch.device) -> None:
    """Keep only this process's share of every weight."""
    # PyTorch warns about in-place changes of such views; there are none here.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    single = {weight for weight in model.parameters() if weight.ndim == 0}
    for weight in single:  # not divisible: replicated, with the mean gradient
        weight.register_post_accumulate_grad_hook(_average)  # type: ignore[no-untyped-call]
    for part, methods in gathered_parts(model):
        fully_shard(part, mesh=mesh, ignored_params=single)
        for method in methods:
            register_fsdp_forward_method(part, method)
    fully_shard(model, mesh=mesh, ignored_params=single)


def _average(weight: Tensor) -> None:
    assert weight.grad is not None
    dist.all_reduce(weight.grad)
    weight.grad /= dist.get_world_size()


def gathered_parts(model: nn.Module) -> list[tuple[nn.Module, tuple[str, ...]]]:
    """List the parts that are gathered separately, inner ones first, with their extra methods."""
    if not isinstance(model, TokenModel) or model.penalty() is not None:
        return []
    if isinstance(model, LanguageModel) and model.config.memory:
        return []
    if model.config.pondering is not None:  # its layers' penalties are read after the pass
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
    """Keep all weights gathered, so that processes may run different code on them."""
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
    """Return all weights on the CPU; every process must call it."""
    whole_by_id: dict[int, Tensor] = {}
    weights: dict[str, Tensor] = {}
    for name, weight in model.state_dict(keep_vars=True).items():
        if id(weight) not in whole_by_id:
            whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
            whole_by_id[id(weight)] = whole.detach().cpu()
        weights[name] = whole_by_id[id(weight)]
    return weights


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
    """Enable recomputation in all layers, including those of a pretrained encoder."""
    for part in model.modules():
        if isinstance(part, Block):
            part.recompute = True
        elif isinstance(part, PretrainedEncoder) and part.stack is None and not part.freeze:
            part.model.gradient_checkpointing_enable({"use_reentrant": False})


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # from malloc.h
_MIB = 2**20


def keep_memory() -> bool:
    """Make glibc reuse blocks up to 1 GiB from a heap it never trims; return whether it agreed."""
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
    """Return unused pages of the heap to the kernel."""
    if _has_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def _has_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"
