"""Time and cache of each causal attention by length; prints the table of docs/scale.md.

python benchmarks/attention.py 2048 4096 8192
"""

import statistics
import sys
import time

import torch

from outrider.nn.attention import attention_kinds, build_attention, load_attention
from outrider.nn.attention.base import AttentionBase

HEADS, WIDTH, REPEATS = 4, 64, 3


def milliseconds(attention: AttentionBase, length: int) -> float:
    """Median time of one forward and backward pass of one row."""
    q, k, v = torch.randn(3, 1, HEADS, length, WIDTH, requires_grad=True).unbind(0)
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        torch.autograd.grad(attention(q, k, v).sum(), (q, k, v))
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[1:])


def main() -> None:
    """Print one row for each kind that can stand in a decoder."""
    lengths = [int(word) for word in sys.argv[1:]] or [2048, 4096, 8192]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {HEADS} x {WIDTH}")
    print("| kind |", " | ".join(f"{n} ms" for n in lengths), "| slots |")
    for kind in attention_kinds():
        if load_attention(kind).Attention.causal_ok:
            attention = build_attention({"kind": kind}, causal=True)
            times = [f"{milliseconds(attention, n):.0f}" for n in lengths]
            print(f"| {kind} |", " | ".join(times), f"| {attention.cost(lengths[-1]).slots} |")


if __name__ == "__main__":
    main()
