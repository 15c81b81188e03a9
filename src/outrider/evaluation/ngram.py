"""An n-gram language model as a baseline: interpolated Kneser-Ney (Kneser and Ney, 1995; Chen and
Goodman, 1999).

    P(w | h) = max(c(h w) - D, 0) / c(h) + D n(h) / c(h) P(w | h')        c(h) = sum_w c(h w)

n(h) is the number of different words after h, and h' is h without its first word. For the longest
n-grams c is the number of occurrences; for shorter ones it is the number of different preceding
words ("Francisco" is frequent, but only after "San"). D = n1 / (n1 + 2 n2), where n1 and n2 are the
numbers of n-grams counted once and twice. The shortest history is interpolated with a uniform
distribution.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.errors import ConfigError, InputError

Gram = tuple[int, ...]


@dataclass
class _Order:
    """Counts of the n-grams of one length."""

    counts: Counter[Gram]
    total: dict[Gram, int] = field(default_factory=lambda: defaultdict(int))
    """c(h)."""
    kinds: dict[Gram, int] = field(default_factory=lambda: defaultdict(int))
    """n(h)."""
    discount: float = 0.0

    def __post_init__(self) -> None:
        for gram, count in self.counts.items():
            self.total[gram[:-1]] += count
            self.kinds[gram[:-1]] += 1
        once, twice = (sum(count == n for count in self.counts.values()) for n in (1, 2))
        self.discount = once / (once + 2 * twice) if once else 0.5


class NgramModel:
    """Predicts a token from the `order - 1` tokens before it."""

    def __init__(self, tokens: Sequence[int], *, order: int, vocab_size: int) -> None:
        """Count a text. Needs some hundred bytes of memory per different n-gram."""
        if order < 1:
            raise ConfigError("order", f"got {order}, expected 1 or more")
        if len(tokens) < order:
            raise InputError(f"{len(tokens)} tokens are too few for n-grams of order {order}")
        self.order, self.vocab_size = order, vocab_size
        grams = Counter(zip(*(tokens[at:] for at in range(order)), strict=False))
        orders = [_Order(grams)]
        while len(orders) < order:
            longer = orders[0].counts if len(orders) > 1 else grams
            orders.insert(0, _Order(Counter(gram[1:] for gram in longer)))
        self._orders = orders

    def probability(self, token: int, before: Sequence[int]) -> float:
        """Return P(token | the last tokens of `before`)."""
        probability = 1 / self.vocab_size
        context = tuple(before[max(0, len(before) - self.order + 1) :])
        for length, order in enumerate(self._orders[: len(context) + 1]):
            history = context[len(context) - length :]
            total = order.total.get(history, 0)
            if not total:
                break  # longer histories do not occur either
            count = max(order.counts.get((*history, token), 0) - order.discount, 0.0)
            backoff = order.discount * order.kinds[history] * probability
            probability = (count + backoff) / total
        return probability

    def nats(self, tokens: Sequence[int], *, start: int) -> float:
        """Return the negative log-likelihood of a text after the token `start`."""
        text = [start, *tokens]
        total = 0.0
        for at in range(1, len(text)):
            before = text[max(0, at - self.order + 1) : at]
            total -= math.log(self.probability(text[at], before))
        return total
