"""Length up to which the plain form of dense attention trains faster than SDPA on this CPU.

python lab/studies/attention_form.py

Prints milliseconds of one forward and backward pass in bfloat16, interleaved, with 4096 tokens in
all rows. `PLAIN_UP_TO` in `nn/kernel/dense.py` is the length found here.
"""

import statistics
import time

import torch

from outrider.torch.nn.kernel import dense

HEADS, WIDTH, TOKENS, REPEATS = 4, 64, 4096, 7
LENGTHS = (16, 32, 64, 128, 192, 256, 384, 512)


def seconds(length: int, *, plain: bool) -> float:
    """Time one pass in the given form."""
    dense.PLAIN_UP_TO = length if plain else 0
    shape = (3, max(1, TOKENS // length), HEADS, length, WIDTH)
    q, k, v = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True).unbind(0)
    start = time.perf_counter()
    torch.autograd.grad(dense.attend(q, k, v, causal=True).sum(), (q, k, v))
    return time.perf_counter() - start


def main() -> None:
    """Print one row per length."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {HEADS} x {WIDTH}")
    print("| length | plain ms | sdpa ms | plain / sdpa |\n|---|---|---|---|")
    for length in LENGTHS:
        pairs = [[seconds(length, plain=plain) for plain in (True, False)] for _ in range(REPEATS)]
        plain, sdpa = (1000 * statistics.median(times) for times in zip(*pairs[1:], strict=True))
        print(f"| {length} | {plain:.1f} | {sdpa:.1f} | {plain / sdpa:.2f} |", flush=True)


if __name__ == "__main__":
    main()
