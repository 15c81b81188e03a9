"""Reversible layers and chunks: memory and time of a training step, relative to plain layers.

    python lab/studies/reversible.py --json FILE

One forward and backward pass of a stack of causal layers with dropout, by depth; and of one wide
feed-forward, by chunks. Memory is the increase of the process's peak, without the gradients of the
weights, each in its own process. Times are measured in turns in one process per depth, as medians.
The last part compares the gradients of 32 layers with those of plain autograd on the same
equations, because recomputed inputs are rounded.
"""

import argparse
import ctypes
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from outrider.runtime.memory import peak_bytes, reset_peak
from outrider.runtime.provenance import machine, versions, write_result
from outrider.torch.models.build import build_stack
from outrider.torch.models.configs import LanguageModelConfig
from outrider.torch.nn.layer.feedforward import FeedForward
from outrider.torch.nn.position import Positions
from outrider.torch.nn.stack import Stack, reversible
from outrider.torch.training.memory import keep_memory
from outrider_lab.bench.process import run_alone

WAYS = {"plain": "add", "reversible": "reversible"}
CHUNKS = (1, 8)
WIDER = 16
"""The inner width of the chunked feed-forward, relative to the model's."""
MMAP_THRESHOLD, MAPPED_FROM = -3, 1 << 16  # of malloc.h; freed larger tensors are returned


@dataclass(frozen=True)
class Setting:
    """One stack and its batch."""

    way: str = "plain"
    layers: int = 2
    rows: int = 2
    tokens: int = 1024
    width: int = 256
    heads: int = 4
    dropout: float = 0.1
    repeats: int = 5
    threads: int | None = None

    def build(self) -> Stack:
        """Return the layers, in training mode."""
        config = LanguageModelConfig(
            hidden_size=self.width,
            intermediate_size=4 * self.width,
            num_attention_heads=self.heads,
            layers=self.layers,
            dropout=self.dropout,
            position="sinusoidal",
            residual=WAYS[self.way],
        )
        return build_stack(config, "attention", cross=False).train()

    def step(self, stack: Stack) -> None:
        """Train on one batch without an optimizer step."""
        x_BTD = torch.ones(self.rows, self.tokens, self.width).requires_grad_()
        y_BTD: Tensor = stack(x_BTD, Positions.upto(self.tokens, x_BTD.device))
        y_BTD.sum().backward()


def measure_memory(setting: Setting) -> dict[str, Any]:
    """Measure one stack."""
    return_freed()
    _prepare(setting)
    stack = setting.build()
    return {**asdict(setting), "peak_bytes": peak_of(stack, lambda: setting.step(stack))}


def measure_chunks(setting: Setting, chunks: int) -> dict[str, Any]:
    """Measure one feed-forward, memory first."""
    return_freed()
    _prepare(setting)
    width, inner = setting.width, WIDER * setting.width
    layer = FeedForward(width, inner, activation="relu", dropout=0.1, chunks=chunks).train()
    x_BTD = torch.ones(setting.rows, setting.tokens, width).requires_grad_()

    def step() -> None:
        layer(x_BTD).sum().backward()

    peak, seconds = peak_of(layer, step), []
    for _ in range(setting.repeats):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return {
        "chunks": chunks,
        "inner": inner,
        "peak_bytes": peak,
        "seconds": statistics.median(seconds),
    }


def rounding(attention: dict[str, Any], precision: str) -> float:
    """Return |g - plain g| / |plain g| of a deep narrow model."""
    torch.manual_seed(0)
    config = LanguageModelConfig(
        hidden_size=64,
        intermediate_size=256,
        num_attention_heads=4,
        layers=32,
        dropout=0.0,
        attention=attention,
        residual="reversible",
    )
    stack = build_stack(config, "attention", cross=False).train()
    x_BTD, weight_BTD = torch.randn(2, 4, 64, 64)
    if precision == "bfloat16 weights":
        stack, x_BTD = stack.bfloat16(), x_BTD.bfloat16()
    found = []
    for patch in (nullcontext(), mock.patch.object(reversible, "_train", reversible._Way.means)):
        torch.manual_seed(1)
        stack.zero_grad()
        with patch, torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            y_BTD = stack(x_BTD, Positions.upto(64, x_BTD.device))
        (y_BTD.float() * weight_BTD).sum().backward()
        grads = [one.grad for one in stack.parameters() if one.grad is not None]
        found.append(torch.cat([one.double().flatten() for one in grads]))
    return float((found[0] - found[1]).norm() / found[1].norm())


def measure_rounding() -> list[dict[str, Any]]:
    """Measure all precisions, with and without hashes that depend on rounding."""
    hashed = {"kind": "lsh", "rounds": 2, "buckets": 8, "chunk": 8, "redraw": True}
    found = []
    for attention in ({"kind": "causal"}, hashed):
        for precision in ("float32", "autocast", "bfloat16 weights"):
            one = {"attention": attention, "precision": precision}
            found.append({**one, "difference": rounding(attention, precision)})
            print(f"{attention['kind']}, {precision}: {found[-1]['difference']:.1e}", flush=True)
    return found


def peak_of(module: nn.Module, step: Callable[[], None]) -> int:
    """Return the peak of the first step, above the memory before it and the gradients after it."""
    gradients = sum(one.numel() * one.element_size() for one in module.parameters())
    reset_peak()
    before = peak_bytes()
    step()
    return peak_bytes() - before - gradients


def return_freed() -> None:
    """Return freed tensors to the system, so that the peak is the memory in use."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, MAPPED_FROM)


def measure_time(setting: Setting) -> dict[str, list[float]]:
    """Return the seconds of every variant at one depth."""
    keep_memory()
    _prepare(setting)
    settings = [replace(setting, way=way) for way in WAYS]
    stacks = [one.build() for one in settings]
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    warm = int(setting.repeats > 1)
    for turn in range(setting.repeats + warm):
        for one, stack in zip(settings, stacks, strict=True):
            stack.zero_grad()
            began = time.perf_counter()
            one.step(stack)
            if turn >= warm:
                seconds[one.way].append(time.perf_counter() - began)
    return seconds


def _prepare(setting: Setting) -> None:
    """Let the libraries allocate their permanent memory."""
    torch.set_num_threads(setting.threads or torch.get_num_threads())
    torch.manual_seed(0)
    small = replace(setting, layers=1, way="plain")
    small.step(small.build())


def slope(points: list[dict[str, Any]]) -> float:
    """Return the bytes per layer, by least squares."""
    layers, peaks = [one["layers"] for one in points], [one["peak_bytes"] for one in points]
    return statistics.linear_regression(layers, peaks).slope


def measure(base: Setting, depths: list[int]) -> dict[str, Any]:
    """Measure all variants at all depths, each in a new process."""
    apart = partial(run_alone, preload=())
    points = []
    for layers in depths:
        seconds = apart(measure_time, replace(base, layers=layers))
        for way in WAYS:
            point = apart(measure_memory, replace(base, layers=layers, way=way))
            point["seconds"] = statistics.median(seconds[way])
            point["seconds_all"] = seconds[way]
            points.append(point)
            print(
                f"{way}, {layers} layers: {point['seconds']:.2f} s, "
                f"{point['peak_bytes'] / 2**20:.1f} MiB",
                flush=True,
            )
    feedforward = [apart(measure_chunks, base, chunks) for chunks in CHUNKS]
    for one in feedforward:
        print(
            f"feed-forward, {one['chunks']} chunks: {one['seconds']:.2f} s, "
            f"{one['peak_bytes'] / 2**20:.1f} MiB"
        )
    by_way = {way: [one for one in points if one["way"] == way] for way in WAYS}
    return {
        "points": points,
        "bytes_per_layer": {way: slope(found) for way, found in by_way.items()},
        "feedforward": feedforward,
    }


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small, for tests")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    base, depths = Setting(threads=options.threads), [2, 4, 8, 16, 32]
    if options.quick:
        base, depths = replace(base, rows=8, width=64, repeats=1), [2, 32]
    found = measure(base, depths)
    for way, growth in found["bytes_per_layer"].items():
        print(f"{way}: {growth / 2**20:+.3f} MiB a layer")
    if not options.quick:
        found["rounding"] = measure_rounding()
    result = {"task": "reversible layers", "quick": options.quick, **found}
    result |= {"machine": machine(), "versions": versions()}
    if options.json is not None:
        write_result(options.json, result)


if __name__ == "__main__":
    main()
