"""Addition: two numbers with the units first, as Neural GPU and Universal Transformer were tested.

    52+81 -> 34        25 + 18 = 43

The units come first because a sum is then computed in the order in which it is written.
"""

from random import Random

from outrider_lab.tasks.base import DIGITS, Example, SequenceTask, word

__all__ = ["Task"]


class Task(SequenceTask):
    """Two numbers of half the length each, and their sum."""

    shortest = 3

    def draw(self, random: Random, length: int) -> Example:
        """Draw the digits of both numbers; leading zeros are allowed."""
        left = word(random, DIGITS, length // 2)
        right = word(random, DIGITS, length - 1 - length // 2)
        total = int(left[::-1]) + int(right[::-1])
        return Example(f"{left}+{right}", str(total)[::-1])
