"""ListOps: the value of nested lists (Nangia and Bowman, 2018, arXiv:1804.06028).

    (X29(N47)0) -> 9        the largest of 2, 9, the smallest of 4 and 7, and 0

Operations: X largest, N smallest, D median (the lower of two), S sum modulo 10, a symbol each, so
that the length of an input is its number of symbols.
"""

from random import Random
from typing import ClassVar

from pydantic import Field

from outrider_lab.tasks.base import (
    DIGITS,
    Example,
    SequenceConfig,
    SequenceTask,
    TaskConfig,
    below,
    pick,
)

LEAST = 4
"""Symbols of the shortest list: brackets, operation, one member."""
MEMBERS = 5
"""Maximum members of a list that contains lists."""


class Config(SequenceConfig):
    """Sizes of the expressions."""

    test_lengths: tuple[int, ...] = (20, 40, 80, 160)
    """Symbols of the test expressions."""
    test_examples: int = Field(default=200, ge=1)
    """Examples of every length."""


class Task(SequenceTask):
    """An expression and its value."""

    config_class: ClassVar[type[TaskConfig]] = Config
    shortest = LEAST

    def draw(self, random: Random, length: int) -> Example:
        """Draw an expression of exactly this length and compute it on the way."""
        text, value = _expression(random, length)
        return Example(text, str(value))


def _expression(random: Random, length: int) -> tuple[str, int]:
    if length == 1:
        value = below(random, len(DIGITS))
        return DIGITS[value], value
    operation = pick(random, "XNDS")
    members = [_expression(random, size) for size in _sizes(random, length - 3)]
    value = _apply(operation, [number for _, number in members])
    return f"({operation}{''.join(text for text, _ in members)})", value


def _sizes(random: Random, total: int) -> list[int]:
    """Divide a length among the members of a list; a member has one symbol or at least LEAST."""
    count = 2 + below(random, MEMBERS - 1)
    most = min(count, (total - count) // (LEAST - 1))
    if most < 1:
        return [1] * total
    sizes = [LEAST] * (1 + below(random, most))
    for _ in range(total - (count - len(sizes)) - sum(sizes)):
        sizes[below(random, len(sizes))] += 1
    for _ in range(count - len(sizes)):
        sizes.insert(below(random, len(sizes) + 1), 1)
    return sizes


def _apply(operation: str, numbers: list[int]) -> int:
    if operation == "X":
        return max(numbers)
    if operation == "N":
        return min(numbers)
    if operation == "S":
        return sum(numbers) % 10
    return sorted(numbers)[(len(numbers) - 1) // 2]
