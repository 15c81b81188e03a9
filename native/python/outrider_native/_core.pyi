"""What the compiled module offers; `src/binding.cpp` says how."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

def instruction_sets() -> list[str]:
    """Instruction sets this machine can run, best first."""

def checksum(path: str | PathLike[str]) -> int:
    """XXH64 of all bytes of a file: it detects damage and other content, not forgery."""

class State:
    """Running sequences: what a model keeps of each. One caller at a time."""

    @property
    def lengths(self) -> list[int]:
        """Tokens each sequence has taken in."""
    @property
    def capacities(self) -> list[int]:
        """Tokens each sequence has room for."""
    @property
    def bytes(self) -> int:
        """Memory of the caches, those of sources among them."""
    def __len__(self) -> int: ...
    def rollback(self, arg: Sequence[int], /) -> None:
        """Make sequence b hold so many tokens; only those of the last extend can be forgotten."""
    def select(self, arg: Sequence[int], /) -> None:
        """Make sequence n what sequence rows[n] was."""
    def join(self, arg0: State, arg1: Sequence[int], /) -> None:
        """Make sequence at[n] what sequence n of the other state was, which is empty then."""

class PackedFile:
    """A file that `Model.save` wrote, mapped read-only: processes share its pages.

    Its sizes and the checksum of its front are checked here (a ValueError says what is wrong), the
    checksums of the weights where a model is built.
    """

    def __init__(self, path: str | PathLike[str]) -> None: ...
    @property
    def about(self) -> str:
        """What was said of it when it was saved."""
    def verify(self) -> None:
        """Read the weights once; a ValueError where a checksum is wrong."""

class Question:
    """What is asked about some rows; the rows of all questions of a call are different."""

    @staticmethod
    def likeliest(
        rows: Sequence[int],
        places: int,
        log_probs: bool,
        forbidden: Sequence[int],
        ends: Sequence[int],
        early: Sequence[int],
    ) -> Question:
        """Which token is likeliest at each of the first places."""
    @staticmethod
    def top(
        rows: Sequence[int],
        count: int,
        forbidden: Sequence[int],
        ends: Sequence[int],
        early: Sequence[int],
    ) -> Question:
        """Which tokens are the likeliest, at one place, with their log-probabilities."""
    @staticmethod
    def draw(
        rows: Sequence[int],
        log_probs: bool,
        temperature: float,
        top_k: int,
        top_p: float,
        uniform: Sequence[float],
        forbidden: Sequence[int],
        ends: Sequence[int],
        early: Sequence[int],
    ) -> Question:
        """Which token a number falls on, at one place; `top_k` 0 and `top_p` 1 leave all."""
    @staticmethod
    def log_probs(
        rows: Sequence[int], places: int, given: Sequence[Sequence[int]], ends: Sequence[int]
    ) -> Question:
        """How likely given tokens are; for the first of `ends` any of them will do."""

class Model:
    """Packed weights and threads. It never changes: any number of threads may call it at once."""

    def __init__(
        self,
        model: dict[str, Any],
        weights: dict[str, NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]] | PackedFile,
        drafter: dict[str, Any] | None,
        ctc: dict[str, Any] | None,
        instruction_set: str,
        threads: int,
    ) -> None:
        """Pack weights, or use those of a file, which may hold side decoders that are not wanted.

        Weights are float32, float16, or uint16 with the bits of bfloat16, and may be mapped; or
        pairs of int8, from -127 to 127, and a float32 scale for each row, which are not rounded
        again.
        """
    @property
    def instruction_set(self) -> str:
        """What its products are computed with."""
    @property
    def threads(self) -> int:
        """Threads of its team, the calling one among them."""
    @property
    def bytes(self) -> int:
        """Memory of the weights, embeddings among them."""
    @property
    def embedding_bytes(self) -> int:
        """Memory of the embeddings."""
    @property
    def mapped(self) -> bool:
        """Whether the weights lie in a mapped file, so that processes share them."""
    def save(self, path: str | PathLike[str], about: str) -> None:
        """Write the packed weights, for `PackedFile`; `about` is the caller's."""
    @property
    def idle_bytes(self) -> int:
        """Memory kept for the next caller."""
    def encode(
        self,
        sources: Sequence[Sequence[int]],
        capacities: Sequence[int],
        drafting: bool,
        parallel: bool,
        words: Sequence[Sequence[int]] = ...,
    ) -> State:
        """Open one sequence for each source, with room for so many tokens.

        With `words`, in order, only those of a source may follow it.
        """
    def extend(
        self, state: State, tokens: Sequence[Sequence[int]], last: bool
    ) -> NDArray[np.float32]:
        """Append tokens; return logits [sequences, longest or 1, words], zero where none are."""
    def cross_attention(self, state: State, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Append tokens; return where each looks in its source: [tokens, layers, heads, keys].

        The tokens of the first sequence come first; behind the end of a source stands zero.
        """
    def likeliest(
        self,
        state: State,
        tokens: Sequence[Sequence[int]],
        forbidden: Sequence[int],
        by_row: Sequence[Sequence[int]],
        ends: Sequence[int],
        early: Sequence[int],
    ) -> list[list[int]]:
        """Append tokens; return the likeliest token after each.

        Forbidden are some to all, others to each sequence, and `ends` at its first `early` places.
        """
    def greedy(
        self,
        state: State,
        newest: Sequence[int],
        steps: int,
        ends: Sequence[int],
        forbidden: Sequence[int],
    ) -> list[list[int]]:
        """Feed the newest tokens and then each sequence's own likeliest ones; return what is said.

        After `steps` tokens, or where a sequence says one of `ends`, all stop.
        """
    def answer(
        self,
        state: State,
        tokens: Sequence[Sequence[int]],
        questions: Sequence[Question],
        last: bool,
    ) -> list[tuple[list[list[int]], list[list[float]]]]:
        """Append tokens; for each question return tokens and log-probabilities, row by row."""
    def draft_and_verify(
        self,
        state: State,
        held: Sequence[int],
        last: Sequence[int],
        counts: Sequence[int],
        min_survival: float,
        text_ends: Sequence[Sequence[int]],
        forbidden: Sequence[int],
        by_row: Sequence[Sequence[int]],
        ends: Sequence[int],
        early: Sequence[int],
        log_probs: bool,
    ) -> tuple[list[list[int]], list[list[int]], list[list[float]], list[list[float]], float]:
        """Guess tokens after `last`, and append `last` and the guesses that are worth checking.

        First, sequences forget what they hold beyond `held` tokens. None is worth checking behind
        `text_ends`, one list for all or one for each. Returns those guesses, the likeliest token
        after `last` and after each of them, its log-probability if asked for, how sure the drafter
        was of each guess, and the seconds that guessing took.
        """
    def draft(
        self,
        state: State,
        last: Sequence[int],
        counts: Sequence[int],
        temperatures: Sequence[float],
        uniform: Sequence[Sequence[float]],
        known: Sequence[Sequence[int]],
    ) -> tuple[list[list[int]], NDArray[np.int64], NDArray[np.float32], list[list[float]]]:
        """Draft tokens after `last`: tokens, candidates, their probabilities, confidence.

        Sampled with `uniform` numbers, or the likeliest; `known` tokens stand (-1: not known). All
        three may be empty, for one sequence or for all. Candidates are [sequences, longest, few].
        """
    def ctc(self, state: State, known: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """Score the slots of whole sequences: logits [sequences, slots, words]."""
