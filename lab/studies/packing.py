"""Sizes and row counts for which weights packed for this CPU multiply faster.

python lab/studies/packing.py

Prints microseconds of one float32 product, plain and packed in turns, as the minimum of several, in
CPU time of one thread, which reduces the effect of other load. Every shape cycles through enough
weights to exceed the core's cache, as in a model. The three constants of `nn/linear.py` come from
this table: below SMALL packing is not faster at 16 rows, from LARGE on it is faster at PACKED_FROM
rows.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

SHAPES = [
    *[(256, 256), (768, 256), (256, 512), (512, 512), (2048, 256)],
    *[(1536, 512), (512, 2048), (32_000, 512)],
]
ROWS = (4, 8, 16, 32, 64)
ROTATED = 96 << 20
"""Total bytes of the weights of one shape."""
SECONDS = 0.3
"""Maximum seconds per figure, after the first turns."""
TURNS = (2, 30)

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]


def turn(kernel: Kernel, x: Tensor, weights: list[Tensor], bias: Tensor) -> float:
    """Return the seconds of one product, over all weights."""
    start = time.thread_time()
    for weight in weights:
        kernel(x, weight, bias)
    return (time.thread_time() - start) / len(weights)


def packed_product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Multiply by a packed weight."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def measure(rows: int, weights: list[Tensor], packed: list[Tensor]) -> tuple[float, float]:
    """Return the minimum microseconds of a plain and of a packed product."""
    outside, inside = weights[0].shape
    x, bias = torch.randn(rows, inside), torch.randn(outside)
    plain_times, packed_times, begun = [], [], time.perf_counter()
    least, most = TURNS
    for number in range(most):
        plain_times.append(turn(F.linear, x, weights, bias))
        packed_times.append(turn(packed_product, x, packed, bias))
        if number >= least and time.perf_counter() - begun > SECONDS:
            break
    return 1e6 * min(plain_times), 1e6 * min(packed_times)


@torch.inference_mode()
def main() -> None:
    """Print one line per shape, and two columns per number of rows."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, float32")
    heads = "".join(f" {rows} plain | packed | ratio |" for rows in ROWS)
    print(f"| weight | numbers |{heads}\n|---|---|{'---|' * 3 * len(ROWS)}")
    for outside, inside in SHAPES:
        copies = max(2, -(-ROTATED // (4 * outside * inside)))
        weights = [torch.randn(outside, inside) for _ in range(copies)]
        packed = [torch.ops.mkldnn._reorder_linear_weight(weight) for weight in weights]
        cells = ""
        for rows in ROWS:
            plain, fast = measure(rows, weights, packed)
            cells += f" {plain:.0f} | {fast:.0f} | {plain / fast:.2f} |"
        print(f"| {outside} x {inside} | {outside * inside:,} |{cells}", flush=True)


if __name__ == "__main__":
    main()
