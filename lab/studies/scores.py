"""Time of other attention scores, relative to the one with PyTorch kernels.

python lab/studies/scores.py --json results/scores.json

One forward and backward pass of 2 heads of 64, in turns, in CPU seconds, the median of three: all
scores under `causal`, and `additive` in a window. Points of more than `--most` pairs are left out,
because nonlinear scores have no kernel.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

from outrider.runtime.provenance import machine, versions, write_result
from outrider.torch.nn.attention import HeadShape, build_attention

HEADS, WIDTH, REPEATS = 2, 64, 3
LENGTHS = (1024, 2048, 4096, 8192)
WINDOW = {"kind": "sliding", "window": 64}
SPECS = {
    "causal scaled_dot": {"kind": "causal"},
    "causal fast": {"kind": "causal", "score": "fast"},
    "causal additive": {"kind": "causal", "score": "additive"},
    "causal slow": {"kind": "causal", "score": "slow"},
    "sliding additive": {**WINDOW, "score": "additive"},
    "sliding slow": {**WINDOW, "score": "slow"},
}
BENT = ("additive", "slow")


def seconds(spec: dict[str, object], length: int) -> float:
    """Time one pass."""
    torch.manual_seed(0)
    attention = build_attention(spec, causal=True, shape=HeadShape(HEADS, HEADS, WIDTH))
    for module in attention.modules():
        if hasattr(module, "reset"):
            module.reset()
    q, k, v = torch.randn(3, 1, HEADS, length, WIDTH, requires_grad=True).unbind(0)
    start = time.process_time()
    torch.autograd.grad(attention(q, k, v).sum(), (q, k, v))
    return time.process_time() - start


def main() -> None:
    """Print one row per score, and write all rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--most", type=int, default=1 << 23, help="most pairs of a nonlinear score")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {name: {} for name in SPECS}
    for length in LENGTHS:
        pairs = {n: length * min(length // 2, 64 if "sliding" in n else length) for n in SPECS}
        chosen = [
            name
            for name, spec in SPECS.items()
            if spec.get("score") not in BENT or pairs[name] <= options.most
        ]
        turns = [{name: seconds(SPECS[name], length) for name in chosen} for _ in range(REPEATS)]
        for name in chosen:
            found[name][str(length)] = statistics.median(turn[name] for turn in turns)
            print(f"{name} at {length}: {found[name][str(length)]:.2f} s", flush=True)
    if options.json:
        result = {"heads": HEADS, "width": WIDTH, "seconds": found}
        write_result(options.json, {**result, "machine": machine(), "versions": versions()})


if __name__ == "__main__":
    main()
