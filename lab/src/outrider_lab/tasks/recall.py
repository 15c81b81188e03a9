"""Key recall: pairs of key and value, a gap, and one of the keys; the answer is its value.

    c7f2a9k4----------f -> 2

The gap carries no information, so the model must remember the pairs across it.
"""

from random import Random
from string import ascii_lowercase
from typing import ClassVar, Self

from pydantic import Field, model_validator

from outrider_lab.tasks.base import (
    DIGITS,
    Example,
    SequenceConfig,
    SequenceTask,
    TaskConfig,
    below,
    pick,
)

GAP = "-"


class Config(SequenceConfig):
    """Sizes of the memory and of the gap."""

    pairs: int = Field(default=4, ge=1, le=len(ascii_lowercase))
    """Pairs to remember."""
    keys: int = Field(default=len(ascii_lowercase), ge=1, le=len(ascii_lowercase))
    """Letters that keys are drawn from."""
    train_length: int = Field(default=64, ge=1)
    """Maximum symbols of a training input, with pairs and gap."""
    test_lengths: tuple[int, ...] = (64, 128, 256)
    """Symbols of the inputs to test on."""
    test_examples: int = Field(default=200, ge=1)
    """Examples of every length."""

    @model_validator(mode="after")
    def _keys_suffice(self) -> Self:
        if self.pairs > self.keys:
            raise ValueError(f"pairs {self.pairs} is more than keys {self.keys}; lower pairs")
        return self


class Task(SequenceTask):
    """Pairs, a gap and a key; the value of that key."""

    config_class: ClassVar[type[TaskConfig]] = Config
    config: Config

    @property
    def least(self) -> int:
        """The pairs, a gap of one symbol, and the key."""
        return 2 * self.config.pairs + 2

    def draw(self, random: Random, length: int) -> Example:
        """Draw distinct keys and a value for each."""
        keys, count = list(ascii_lowercase[: self.config.keys]), self.config.pairs
        pairs = {keys.pop(below(random, len(keys))): pick(random, DIGITS) for _ in range(count)}
        key = pick(random, list(pairs))
        prefix = "".join(k + value for k, value in pairs.items())
        return Example(f"{prefix}{GAP * (length - len(prefix) - 1)}{key}", pairs[key])
