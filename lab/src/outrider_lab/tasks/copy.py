"""Copy: repeat the input.

70421 -> 70421
"""

from random import Random

from outrider_lab.tasks.base import DIGITS, Example, SequenceTask, word


class Task(SequenceTask):
    """Digits and the same digits."""

    def draw(self, random: Random, length: int) -> Example:
        """Draw a word and repeat it."""
        drawn = word(random, DIGITS, length)
        return Example(drawn, drawn)
