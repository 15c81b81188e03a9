"""Duplication: a word twice on one line (Reformer, arXiv:2001.04451, section 5).

    w # w

All words have the same length, so the model must attend to a fixed distance. A language model is
trained on consecutive lines; only the second w is scored.
"""

from random import Random
from string import ascii_letters
from typing import ClassVar

from pydantic import Field

from outrider_lab.tasks.base import Example, SequenceConfig, SequenceTask, TaskConfig, word


class Config(SequenceConfig):
    """Sizes of the words."""

    examples: int = Field(default=20_000, ge=1)
    """Lines to train on."""
    train_length: int = Field(default=63, ge=1)
    """Symbols of every word to train on."""
    test_lengths: tuple[int, ...] = (63,)
    """Symbols of the words to test on."""
    symbols: int = Field(default=31, ge=2, le=len(ascii_letters))
    """Different symbols."""


class Task(SequenceTask):
    """Letters, and the same letters after a mark."""

    config_class: ClassVar[type[TaskConfig]] = Config
    model_types = ("language_model",)
    separator = "#"
    config: Config

    def draw(self, random: Random, length: int) -> Example:
        """Draw a word and repeat it."""
        drawn = word(random, ascii_letters[: self.config.symbols], length)
        return Example(drawn, drawn)

    def train_lengths(self) -> list[int]:
        """Return the only length."""
        return [self.config.train_length]
