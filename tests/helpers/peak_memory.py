"""Peak memory of attentions, measured in new processes.

A used process holds freed memory, whose reuse would not be measured.
"""

import torch

from outrider.torch.nn.attention.causal import Attention as Causal
from outrider_lab.bench.attention.point import PointSetting, measure_memory


class Quadratic(Causal):
    """Correct, but it stores all scores, which takes quadratic memory."""

    def run(self, q, k, v, keep):
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v


def measure_quadratic(one: PointSetting) -> dict:
    right = one.build()
    return measure_memory(Quadratic(right.config, causal=True, shape=right.shape), one)


def measure_right(one: PointSetting) -> dict:
    return measure_memory(one.build(), one)


def quadratic_bytes(one: PointSetting) -> int:
    return 4 * one.heads * one.length**2
