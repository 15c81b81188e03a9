"""Time and memory of one attention at one length, and the time of its peer.

Runs in its own process (see `scaling`), because freed memory of an earlier point would hide the
memory of a later one. Memory is measured first, before the peer runs.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.runtime.memory import peak_bytes, reset_peak, resident_bytes
from outrider.torch.inspect.attention_trace import runs_dense
from outrider.torch.nn.attention import AttentionBase, HeadShape, build_attention

PEER = "causal"
"""Dense causal attention by PyTorch's own kernel."""
WARM = 256
"""Tokens of the warm-up passes."""
TRACED = HeadShape(heads=4, kv_heads=4, width=16)


@dataclass(frozen=True)
class PointSetting:
    """A kind at a length, and how to measure it."""

    kind: str
    options: Mapping[str, Any]
    causal: bool
    length: int
    heads: int = 4
    width: int = 64
    peer: bool = True
    """Whether to time the peer too."""
    repeats: int = 5
    seconds: float = 60.0
    """Start no further repeat after this time."""
    threads: int | None = None

    def build(self) -> AttentionBase:
        """Return the attention, in training mode."""
        shape = HeadShape(self.heads, self.heads, self.width)
        spec = {"kind": self.kind, **self.options}
        return build_attention(spec, causal=self.causal, shape=shape).train()


def measure_point(setting: PointSetting) -> dict[str, Any]:
    """Return the seconds and bytes of a forward pass and of a pass with backward."""
    if setting.threads is not None:
        torch.set_num_threads(setting.threads)
    torch.manual_seed(0)
    attention = setting.build()
    result: dict[str, Any] = {"length": setting.length, "options": dict(setting.options)}
    result |= measure_memory(attention, setting)
    result |= _times(attention, setting)
    result["dense"] = runs_dense(_narrow(setting), setting.length)
    return result


def measure_memory(attention: AttentionBase, setting: PointSetting) -> dict[str, Any]:
    """Return by how much one pass raises the peak memory of this process."""
    _warm_up(setting)
    inputs = _inputs(setting, setting.length)
    before = resident_bytes()
    peaks = {}
    for name, run in _PASSES.items():
        reset_peak()
        outputs = run(attention, inputs)
        if not all(bool(x.isfinite().all()) for x in outputs):
            raise FloatingPointError(f"{setting.kind} returned values that are not finite")
        del outputs
        peaks[f"{name}_peak_bytes"] = max(0, peak_bytes() - before)
    return peaks


def _times(attention: AttentionBase, setting: PointSetting) -> dict[str, Any]:
    """Time the attention and its peer alternately; return the minimum of each."""
    modules = {"": attention}
    if setting.peer:
        shape = attention.shape
        modules["peer_"] = build_attention({"kind": PEER}, causal=True, shape=shape).train()
    inputs = _inputs(setting, setting.length)
    times: dict[str, list[float]] = {
        f"{prefix}{name}": [] for prefix in modules for name in _PASSES
    }
    start = time.perf_counter()
    for turn in range(setting.repeats):
        if turn and time.perf_counter() - start > setting.seconds:
            break
        for name, run in _PASSES.items():
            for prefix, module in modules.items():
                times[f"{prefix}{name}"].append(_seconds(run, module, inputs))
    best: dict[str, Any] = {f"{name}_seconds": min(values) for name, values in times.items()}
    return {**best, "turns": len(times["forward"])}


def _forward(attention: AttentionBase, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    with torch.no_grad():
        return [attention(*inputs)]


def _training(attention: AttentionBase, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = [*inputs, *attention.parameters()]
    loss = attention(*inputs).sum()
    grads: tuple[Tensor | None, ...] = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [grad for grad in grads if grad is not None]


_PASSES: dict[str, Callable[[AttentionBase, tuple[Tensor, ...]], list[Tensor]]] = {
    "forward": _forward,
    "training": _training,
}
"""A forward pass without gradients, and one with its backward pass."""


def _seconds(
    run: Callable[[AttentionBase, tuple[Tensor, ...]], list[Tensor]],
    attention: AttentionBase,
    inputs: tuple[Tensor, ...],
) -> float:
    start = time.perf_counter()
    run(attention, inputs)
    return time.perf_counter() - start


def _warm_up(setting: PointSetting) -> None:
    short = min(WARM, setting.length)
    for run in _PASSES.values():
        run(setting.build(), _inputs(setting, short))


def _narrow(setting: PointSetting) -> AttentionBase:
    """Return the same attention with narrow heads, to determine which path runs."""
    spec = {"kind": setting.kind, **setting.options}
    shape = TRACED._replace(heads=setting.heads, kv_heads=setting.heads)
    return build_attention(spec, causal=setting.causal, shape=shape).double().eval()


def _inputs(setting: PointSetting, length: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shape = (1, setting.heads, length, setting.width)
    return tuple(torch.randn(shape, generator=generator).requires_grad_() for _ in "qkv")
