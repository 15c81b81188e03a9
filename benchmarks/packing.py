"""How many rows a linear layer needs before a weight packed for this CPU multiplies faster.

python benchmarks/packing.py

Prints milliseconds for all products of one step of a 6-layer decoder of width 512 with 16000 words,
float32, interleaved; `nn/linear.py` holds the row count found here as PACKED_FROM.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from outrider.nn.linear import pack

LAYER = [(1536, 512), (512, 512), (512, 512), (512, 512), (2048, 512), (512, 2048)]
SHAPES = LAYER * 6 + [(16_000, 512)]
REPEATS = 9


def seconds(run: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@torch.inference_mode()
def main() -> None:
    """Print one row a number of rows."""
    weights = [torch.randn(shape) for shape in SHAPES]
    biases = [torch.randn(outside) for outside, _ in SHAPES]
    packed = [pack(weight) for weight in weights]
    kernel = torch.ops.mkldnn._linear_pointwise
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), float32")
    print("| rows | plain ms | packed ms | plain / packed |\n|---|---|---|---|")
    for rows in (1, 2, 4, 8, 16, 32, 64):
        x = {width: torch.randn(rows, width) for width in (512, 2048)}
        inputs = [x[inside] for _, inside in SHAPES]

        def plain(inputs: list[torch.Tensor] = inputs) -> object:
            return [F.linear(*each) for each in zip(inputs, weights, biases, strict=True)]

        def fast(inputs: list[torch.Tensor] = inputs) -> object:
            parts = zip(inputs, packed, biases, strict=True)
            return [kernel(x, weight, bias, "none", [], "") for x, weight, bias in parts]

        pairs = [(seconds(plain), seconds(fast)) for _ in range(REPEATS)]
        a, b = (1000 * statistics.median(times) for times in zip(*pairs[1:], strict=True))
        print(f"| {rows} | {a:.1f} | {b:.1f} | {a / b:.2f} |", flush=True)


if __name__ == "__main__":
    main()
