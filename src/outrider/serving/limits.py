"""Limits of a server and admission of requests.

Every size that a client can choose has an upper bound. A request that would exceed the token budget
or its deadline is refused immediately:

    expected time = (own + sum_j min(left_j, max(own, mean_j))) / speed

where all quantities except the speed (tokens per second) are tokens. Requests take turns by pieces
(`scheduler.py`), so request j, with left_j tokens left and mean_j tokens per piece, delays a new
request by at most its own size or one piece. While the model is not fully loaded, the measured
speed is a lower bound and can only rise.
"""

import ctypes
import os
import sys
from dataclasses import dataclass
from math import exp, log
from time import monotonic

from outrider.serving.request import BusyError, RequestHandle


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one server; the defaults suit a model of a hundred million weights on a CPU."""

    rows: int = 64
    """Rows decoded together, counting every beam."""
    batch_tokens: int = 16_384
    """Tokens reserved by those rows: sources, prompts and new tokens."""
    queue_tokens: int = 1 << 20
    """Tokens reserved by all admitted requests of a model."""
    characters: int = 100_000
    """Characters of all texts of a request."""
    texts: int = 2_048
    """Texts of a request."""
    preparing: int = 4_000_000
    """Characters of all texts that are being tokenized."""
    new_tokens: int = 4_096
    """Largest `max_new_tokens` of a request."""
    rows_each: int = 16
    """Beams or candidates of one piece of a text."""
    seconds: float = 60.0
    """Time limit of a request."""
    body: int = 2 << 20
    """Bytes of a request's body."""
    document: int = 32 << 20
    """Bytes of a request with a document."""
    body_seconds: float = 15.0
    """Time limit for receiving a request, and for each `body` bytes of a document."""
    connections: int = 1_024
    """Simultaneous connections; further ones receive 503."""


WINDOW = 1.0
"""Seconds over which the speed is measured."""
SPEED_WEIGHT = 0.5
"""Weight of the newest window in the running mean of the speed."""
TOKENS_WEIGHT = 0.02
"""Weight of the newest request in the running mean of tokens per character."""
FRESH = 0.02
"""Seconds for which the result of `Admission.overload` is cached."""
PROMISE = 0.5
"""Largest expected time of an admitted request, as a share of its time limit."""
SURE = 3
"""Windows before `PROMISE` applies: the first are too slow, because short texts finish first."""


class Admission:
    """Token reservations of one model: admitted requests, their tokens left, and the speed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left: dict[RequestHandle, int] = {}
        self.tokens = 0
        """Tokens that all admitted requests still need."""
        self.speed = 0.0
        """Reserved tokens per second; 0 before the first measurement."""
        self._windows = 0
        """Number of measurements."""
        self._began: float | None = None
        self._done = 0.0
        self._tokens_per_character = 1.0
        self._log_tokens = 0.0
        """Running mean of the logarithm of a request's tokens, robust against long documents."""
        self._saturated = False
        """Whether the current window began or became fully loaded."""
        self._checked = 0.0
        self._overload: BusyError | None = None

    def __len__(self) -> int:
        return len(self._left)

    def check(self, tokens: int, seconds: float) -> None:
        """Refuse a request that exceeds the token budget or would be late."""
        if (error := self._refusal(tokens, seconds)) is not None:
            raise error

    def overload(self) -> BusyError | None:
        """Return the error that a request of typical size would receive now."""
        if monotonic() - self._checked > FRESH:
            self._checked = monotonic()
            self._overload = self._refusal(int(exp(self._log_tokens)), self._limits.seconds)
        return self._overload

    def _refusal(self, tokens: int, seconds: float) -> BusyError | None:
        if not self._left:
            return None
        if self.tokens + tokens > self._limits.queue_tokens:
            drained = self.tokens / self.speed if self.speed else seconds
            message = "too many requests are waiting; try again later"
            return BusyError(message, retry_after=min(drained, 60))
        expected = self.expected(tokens)
        if expected <= seconds * (PROMISE if self._windows >= SURE else 1.0):
            return None
        message = "too many requests are waiting to finish this one in time; try again later"
        return BusyError(message, retry_after=min(expected, 60))

    def expected(self, tokens: int) -> float:
        """Return the expected seconds of a new request; 0 before the first measurement."""
        if not self.speed:
            return 0.0
        others = sum(
            min(left, max(tokens, request.mean_tokens)) for request, left in self._left.items()
        )
        return (tokens + others) / self.speed

    def estimate(self, characters: int) -> int:
        """Estimate the tokens of texts before they are tokenized."""
        return int(characters * self._tokens_per_character)

    def observe(self, characters: int, tokens: int) -> None:
        """Update the estimates with the size of a request."""
        if characters and tokens:
            error = tokens / characters - self._tokens_per_character
            self._tokens_per_character += TOKENS_WEIGHT * error
            self._log_tokens += TOKENS_WEIGHT * (log(tokens) - self._log_tokens)

    def reserve(self, request: RequestHandle) -> None:
        """Reserve the tokens of a request."""
        if not self._left:
            self._began = None  # rows that start together: the time to the first end is no speed
        self._left[request] = request.tokens
        self.tokens += request.tokens
        self._saturated = self._saturated or self.tokens > self._limits.batch_tokens

    def adjust(self, request: RequestHandle, tokens: int) -> None:
        """Change the reservation of an admitted request, whose size is now known."""
        if request in self._left:
            self._left[request] += tokens
            self.tokens += tokens

    def finish_piece(self, request: RequestHandle, piece: int) -> None:
        """Release the tokens of a finished piece and measure the speed."""
        tokens = request.requests[piece].needs[1]
        if request in self._left:
            self._left[request] -= tokens
            self.tokens -= tokens
        now = monotonic()
        if self._began is None:
            self._began, self._done = now, 0.0
            return
        self._done += tokens
        if now - self._began >= WINDOW:
            self._update_speed(self._done / (now - self._began))

    def release(self, request: RequestHandle) -> None:
        """Release the reservation of a finished or cancelled request."""
        self.tokens -= self._left.pop(request, 0)

    def _update_speed(self, speed: float) -> None:
        self._windows += 1
        if not self.speed or not self._saturated:
            self.speed = max(self.speed, speed)
        else:
            self.speed += SPEED_WEIGHT * (speed - self.speed)
        self._began, self._done = monotonic(), 0.0
        self._saturated = self.tokens > self._limits.batch_tokens


M_MMAP_THRESHOLD = -3
"""The parameter of glibc's `mallopt`: blocks of this size and above are mapped separately."""
THRESHOLD_BYTES = 128 << 10


def limit_malloc_threshold() -> bool:
    """Let glibc return freed decoding states to the system.

    By default its mmap threshold rises to the size of the largest freed block, up to 32 MiB. Blocks
    below it fragment the heap: with OPUS-MT and 64 rows it grows to twice the size. No effect with
    other C libraries.
    """
    if not sys.platform.startswith("linux") or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # not glibc
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, THRESHOLD_BYTES))


def trim_malloc() -> bool:
    """Return freed memory to the system, which glibc does not do by itself."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    return trim is not None and bool(trim(0))
