"""Parity: whether the number of ones is odd (Graves, 2016, arXiv:1603.08983, section 3.1).

    1011 -> 1

More bits are more difficult, so a model with adaptive computation should take more steps.
"""

from random import Random
from typing import ClassVar

from pydantic import Field

from outrider_lab.tasks.base import Example, SequenceConfig, SequenceTask, TaskConfig, word


class Config(SequenceConfig):
    """Numbers of bits."""

    train_length: int = Field(default=20, ge=1)
    """Most bits to train on."""
    test_lengths: tuple[int, ...] = (4, 8, 12, 16, 20, 40)
    """Bits to test on: the difficulty."""
    test_examples: int = Field(default=200, ge=1)
    """Examples of every number of bits."""


class Task(SequenceTask):
    """Bits, and their sum modulo 2."""

    config_class: ClassVar[type[TaskConfig]] = Config

    def draw(self, random: Random, length: int) -> Example:
        """Draw bits and count the ones."""
        bits = word(random, "01", length)
        return Example(bits, str(bits.count("1") % 2))
