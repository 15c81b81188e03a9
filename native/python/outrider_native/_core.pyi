"""The compiled module (`src/binding.cpp`)."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

def instruction_sets() -> list[str]:
    """Return the instruction sets of this machine, best first."""

def checksum(path: str | PathLike[str]) -> int:
    """Return XXH64 of all bytes of a file, which detects damage and changes, not forgery."""

class State:
    """Running sequences and their caches. One caller at a time."""

    @property
    def lengths(self) -> list[int]:
        """Cached tokens of each sequence."""
    @property
    def capacities(self) -> list[int]:
        """Maximal number of tokens of each sequence."""
    @property
    def bytes(self) -> int:
        """Memory of the caches, including those of sources."""
    def __len__(self) -> int: ...
    def rollback(self, arg: Sequence[int], /) -> None:
        """Truncate sequences to these lengths, at most undoing the last extend."""
    def select(self, arg: Sequence[int], /) -> None:
        """Replace the sequences by copies of these rows."""
    def join(self, arg0: State, arg1: Sequence[int], /) -> None:
        """Move sequence n of another state to place at[n], replacing or appending."""

class PackedFile:
    """A file written by `Engine.save`, mapped read-only; processes share its pages.

    Its sizes and the checksum of its header are verified here (ValueError), the checksums of the
    weights when an engine is built.
    """

    def __init__(self, path: str | PathLike[str]) -> None: ...
    @property
    def about(self) -> str:
        """The caller's text, given to `Engine.save`."""
    def verify(self) -> None:
        """Verify the checksums of the weights; ValueError."""

class Query:
    """A query about some rows. The queries of a call have disjoint rows."""

    @staticmethod
    def argmax(
        rows: Sequence[int],
        places: int,
        log_probs: bool,
        forbidden: Sequence[int],
        ends: Sequence[int],
        early: Sequence[int],
    ) -> Query:
        """Return the best token at each of the first places.

        `forbidden` tokens are never chosen, and `ends` not at the first `early` places of each row.
        """
    @staticmethod
    def top_k(
        rows: Sequence[int],
        count: int,
        forbidden: Sequence[int],
        ends: Sequence[int],
        early: Sequence[int],
    ) -> Query:
        """Return the best tokens and their log-probabilities at one place."""
    @staticmethod
    def sample(
        rows: Sequence[int],
        log_probs: bool,
        temperature: float,
        top_k: int,
        top_p: float,
        uniform: Sequence[float],
        forbidden: Sequence[int],
        ends: Sequence[int],
        early: Sequence[int],
    ) -> Query:
        """Sample a token at one place; `top_k` 0 and `top_p` 1 exclude nothing."""
    @staticmethod
    def log_probs(
        rows: Sequence[int], places: int, given: Sequence[Sequence[int]], ends: Sequence[int]
    ) -> Query:
        """Return log-probabilities of given tokens; the first of `ends` stands for any of them."""

class Engine:
    """A model with packed weights and threads. Several threads can call it at once."""

    def __init__(
        self,
        model: dict[str, Any],
        weights: dict[str, NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]] | PackedFile,
        drafter: dict[str, Any] | None,
        ctc: dict[str, Any] | None,
        instruction_set: str,
        threads: int,
    ) -> None:
        """Pack weights, or use those of a file, which can contain unused side decoders.

        Weights are float32, float16, or uint16 with the bits of bfloat16, and may be mapped; or
        pairs of int8, from -127 to 127, and a float32 scale for each row, which are not rounded
        again.
        """
    @property
    def instruction_set(self) -> str:
        """The instruction set in use."""
    @property
    def threads(self) -> int:
        """Number of threads, including the calling one."""
    @property
    def bytes(self) -> int:
        """Memory of the weights, including embeddings."""
    @property
    def embedding_bytes(self) -> int:
        """Memory of the embeddings."""
    @property
    def mapped(self) -> bool:
        """Whether the weights are in a mapped file, which processes share."""
    def save(self, path: str | PathLike[str], about: str) -> None:
        """Write the packed weights and a text of the caller, for `PackedFile`."""
    @property
    def idle_bytes(self) -> int:
        """Memory of released buffers."""
    def encode(
        self,
        sources: Sequence[Sequence[int]],
        capacities: Sequence[int],
        drafting: bool,
        parallel: bool,
        shortlists: Sequence[Sequence[int]],
    ) -> State:
        """Encode sources and open a sequence for each, with capacity for this number of tokens.

        `shortlists` is empty, or has the allowed target tokens of each source, ascending.
        """
    def extend(
        self, state: State, tokens: Sequence[Sequence[int]], last: bool
    ) -> NDArray[np.float32]:
        """Append tokens; return logits [sequences, longest or 1, vocab_size], padded with zeros."""
    def cross_attention(self, state: State, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Append tokens; return the weights of cross-attention [tokens, layers, heads, keys].

        The tokens of the first sequence come first; shorter sources are padded with zeros.
        """
    def argmax(
        self,
        state: State,
        tokens: Sequence[Sequence[int]],
        forbidden: Sequence[int],
        ends: Sequence[int],
        early: Sequence[int],
    ) -> list[list[int]]:
        """Append tokens; return the best token after each."""
    def greedy(
        self,
        state: State,
        last: Sequence[int],
        steps: int,
        ends: Sequence[int],
        forbidden: Sequence[int],
    ) -> list[list[int]]:
        """Append the last tokens and then greedy ones; return the greedy tokens.

        Stops after `steps` tokens, or when a sequence produces one of `ends`.
        """
    def answer(
        self,
        state: State,
        tokens: Sequence[Sequence[int]],
        queries: Sequence[Query],
        last: bool,
    ) -> list[tuple[list[list[int]], list[list[float]]]]:
        """Append tokens; return tokens and log-probabilities of each row for each query."""
    def draft_and_verify(
        self,
        state: State,
        lengths: Sequence[int],
        last: Sequence[int],
        counts: Sequence[int],
        min_survival: float,
        stop_tokens: Sequence[int],
        forbidden: Sequence[int],
        ends: Sequence[int],
        early: Sequence[int],
        log_probs: bool,
    ) -> tuple[list[list[int]], list[list[int]], list[list[float]], list[list[float]], float]:
        """Truncate sequences to `lengths`, draft, and append `last` and the drafts worth verifying.

        Drafts after one of `stop_tokens` are not verified. Returns the verified drafts, the best
        token after `last` and after each of them, its log-probability if requested, the confidence
        of each draft, and the seconds of drafting.
        """
    def draft(
        self,
        state: State,
        last: Sequence[int],
        counts: Sequence[int],
        temperature: float,
        uniform: Sequence[Sequence[float]],
        known: Sequence[Sequence[int]],
    ) -> tuple[list[list[int]], NDArray[np.int64], NDArray[np.float32], list[list[float]]]:
        """Draft tokens after `last`: tokens, candidates, their probabilities, confidence.

        Tokens are sampled with `uniform` numbers, or the best ones; `known` tokens are kept (-1:
        unknown). Both can be empty, as a whole or for a sequence. Candidates are
        [sequences, longest, candidates].
        """
    def ctc(self, state: State, known: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """Score the slots of whole texts: logits [sequences, slots, vocab_size]."""
