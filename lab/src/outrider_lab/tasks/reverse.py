"""Reverse: the input backwards.

70421 -> 12407
"""

from random import Random

from outrider_lab.tasks.base import DIGITS, Example, SequenceTask, word


class Task(SequenceTask):
    """Digits and the same digits reversed."""

    def draw(self, random: Random, length: int) -> Example:
        """Draw a word and reverse it."""
        drawn = word(random, DIGITS, length)
        return Example(drawn, drawn[::-1])
