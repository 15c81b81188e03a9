"""Addition of two numbers, as in tests of Neural GPU and Universal Transformer.

    52+81 -> 34        25 + 18 = 43

The units come first, so the sum can be computed from left to right.
"""

from random import Random

from outrider_lab.tasks.base import DIGITS, Example, SequenceTask, word


class Task(SequenceTask):
    """Two numbers of half the length each, and their sum."""

    shortest = 3

    def draw(self, random: Random, length: int) -> Example:
        """Draw the digits of both numbers; leading zeros are allowed."""
        left = word(random, DIGITS, length // 2)
        right = word(random, DIGITS, length - 1 - length // 2)
        total = int(left[::-1]) + int(right[::-1])
        return Example(f"{left}+{right}", str(total)[::-1])
