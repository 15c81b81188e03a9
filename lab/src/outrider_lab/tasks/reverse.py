"""Reverse: say the input backwards.

70421 -> 12407
"""

from random import Random

from outrider_lab.tasks.base import DIGITS, Example, SequenceTask, word

__all__ = ["Task"]


class Task(SequenceTask):
    """Digits, the same digits from the end."""

    def draw(self, random: Random, length: int) -> Example:
        """Draw a word and turn it round."""
        drawn = word(random, DIGITS, length)
        return Example(drawn, drawn[::-1])
