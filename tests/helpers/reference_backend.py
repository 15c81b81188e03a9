"""`decoding.protocol` in numpy for a model that is a random table, as documentation and reference.

Scores are drawn once for every source and every prefix, so a row depends on nothing else, and no
two scores are equal. The drafter mixes these scores with noise; higher `skill` means less noise.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from outrider.decoding.protocol import Candidates, Drafts, Proposal, Slots, State
from outrider.decoding.queries import Argmax, Forbidden, Query
from outrider.inverse_cdf import invert, masses

__all__ = ["ReferenceBackend", "ReferenceDrafts", "ReferenceSlots", "ReferenceState"]

AnswerT = TypeVar("AnswerT")
Tokens = tuple[int, ...]
Scores = NDArray[np.float64]


class ReferenceState:
    """The state of each row: its source and its tokens."""

    def __init__(self, sources: list[Tokens], capacities: Sequence[int], *, drafting: bool) -> None:
        self.rows: list[tuple[Tokens, Tokens]] = [(source, ()) for source in sources]
        self.capacities, self.drafting = list(capacities), drafting
        self.group = 1
        """Neighbouring rows that share a source."""

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each row."""
        return [len(tokens) for _, tokens in self.rows]

    def rollback(self, lengths: Sequence[int]) -> None:
        """Drop the last tokens."""
        assert all(new <= old for new, old in zip(lengths, self.lengths, strict=True))
        pairs = zip(self.rows, lengths, strict=True)
        self.rows = [(source, tokens[:length]) for (source, tokens), length in pairs]

    def select(self, rows: Sequence[int]) -> None:
        """Drop, reorder or copy rows."""
        self.rows = [self.rows[row] for row in rows]
        self.capacities = [self.capacities[row] for row in rows]
        for start in range(0, len(rows), self.group):
            sources = {source for source, _ in self.rows[start : start + self.group]}
            assert len(sources) == 1, "rows that share a source stay together"

    def join(self, other: State, at: Sequence[int]) -> None:
        """Move the rows of another state into this one."""
        assert isinstance(other, ReferenceState)
        assert (self.group, self.drafting) == (other.group, other.drafting)
        assert len(set(at)) == len(at)
        for place, row, capacity in zip(at, other.rows, other.capacities, strict=True):
            self.rows[place : place + 1] = [row]
            self.capacities[place : place + 1] = [capacity]
        other.rows, other.capacities = [], []

    def repeat_rows(self, times: int) -> Self:
        """Copy every row; copies are adjacent."""
        self.select([row for row in range(len(self.rows)) for _ in range(times)])
        self.group = times
        return self


class ReferenceBackend:
    """Implements `decoding.protocol.Backend`."""

    start, eos, pad = 0, 1, 0
    ends: Tokens = (1,)
    epsilon = 0.0
    compact_threshold = 0.0
    device = "cpu"

    def __init__(
        self,
        vocab_size: int = 6,
        max_length: int | None = None,
        *,
        seed: int = 0,
        block: int = 0,
        skill: float = 0.5,
        ctc: bool = False,
    ) -> None:
        """Make a model.

        Args:
            vocab_size: Size of the vocabulary; 0 starts a text and pads it, 1 ends it.
            max_length: Number of positions.
            seed: Seed of its scores.
            block: Tokens of a draft; 0 for no drafter.
            skill: Weight of the model's scores in those of the drafter, up to 1.
            ctc: Whether it has a CTC decoder.
        """
        self.vocab_size, self.max_length, self.seed = vocab_size, max_length, seed
        self.drafts: Drafts | None = ReferenceDrafts(self, block, skill) if block else None
        self.slots: Slots | None = ReferenceSlots(self) if ctc else None

    def encode(
        self,
        source: Sequence[Sequence[int]],
        *,
        capacity: int | Sequence[int],
        drafting: bool = False,
        parallel: bool = False,
    ) -> ReferenceState:
        """Open one row per source."""
        room = [capacity] * len(source) if isinstance(capacity, int) else capacity
        assert self.max_length is None or max(room) <= self.max_length, "more than it can count to"
        return ReferenceState([tuple(row) for row in source], room, drafting=drafting)

    def extend(
        self,
        tokens: Sequence[Sequence[int]],
        state: State,
        query: Query[AnswerT],
        *,
        last: bool = False,
    ) -> AnswerT:
        """Append tokens to every row and answer a query about the next token after each."""
        assert isinstance(state, ReferenceState)
        return query.answer(self.take_in(tokens, state, last=last))

    def greedy(
        self,
        newest: Sequence[int],
        state: State,
        forbidden: Sequence[int],
        *,
        steps: int,
        ends: Collection[int],
    ) -> list[list[int]]:
        """Append the argmax tokens of every row after its last one."""
        query, said = Argmax(Forbidden(tuple(forbidden))), [[token] for token in newest]
        for _ in range(steps):
            chosen = self.extend([row[-1:] for row in said], state, query)
            said = [[*row, token] for row, (token,) in zip(said, chosen.tokens, strict=True)]
            if any(row[-1] in ends for row in said):
                break
        return [row[1:] for row in said]

    def take_in(
        self, tokens: Sequence[Sequence[int]], state: ReferenceState, *, last: bool
    ) -> Scores:
        """Append tokens and return the scores of the vocabulary after each, [B, T, V]."""
        width = max(map(len, tokens))
        scores_BTV = np.full((len(tokens), width, self.vocab_size), np.nan)
        for row, fed in enumerate(tokens):
            source, seen = state.rows[row]
            for place, token in enumerate(fed):
                seen = (*seen, token)
                scores_BTV[row, place] = self.logits(source, seen)
            state.rows[row] = source, seen
            assert len(seen) <= state.capacities[row], "more tokens than the state has room for"
        if not last:
            return scores_BTV
        return np.stack([scores_BTV[row, len(fed) - 1] for row, fed in enumerate(tokens)])[:, None]

    def logits(self, source: Tokens, seen: Tokens) -> Scores:
        """Score the tokens that may follow `seen`, whose first token is `start`."""
        return _table((self.seed, 0, *source), seen, self.vocab_size)


class ReferenceDrafts:
    """Implements `decoding.protocol.Drafts`."""

    candidates = 4

    def __init__(self, backend: ReferenceBackend, block: int, skill: float) -> None:
        self.backend, self.longest, self.longest_text, self.skill = backend, block, block, skill

    def draft(
        self,
        newest: Sequence[int],
        state: State,
        tokens: Sequence[int],
        *,
        temperature: float = 1.0,
        uniform: Sequence[Sequence[float]] | None = None,
    ) -> Proposal:
        """Draft the tokens that follow the last ones."""
        assert isinstance(state, ReferenceState)
        assert state.drafting, "the state was not opened for drafting"
        assert max(tokens) <= self.longest
        shape = len(tokens), max(tokens), self.candidates
        q = Candidates(np.zeros(shape, dtype=np.int64), np.zeros(shape))
        drafted, confidence = list[list[int]](), list[list[float]]()
        rows = enumerate(zip(newest, state.rows, tokens, strict=True))
        for n, (token, (source, seen), count) in rows:
            numbers = None if uniform is None else uniform[n]
            said, sure, ids, prob = self.draft_row(
                source, (*seen, token), count, temperature, numbers
            )
            drafted.append(said)
            confidence.append(sure)
            if count:
                q.ids_BKC[n, :count], q.prob_BKC[n, :count] = ids, prob
        return Proposal(drafted, confidence, q)

    def draft_row(
        self,
        source: Tokens,
        seen: Tokens,
        tokens: int,
        temperature: float = 1.0,
        uniform: Sequence[float] | None = None,
    ) -> tuple[list[int], list[float], list[NDArray[np.int64]], list[Scores]]:
        """Return tokens, their confidence, the candidates [K, C] and their probabilities."""
        begun, said, sure = len(seen), list[int](), list[float]()
        ids, probs = list[NDArray[np.int64]](), list[Scores]()
        for place in range(tokens):
            score_V = self.opinion(source, seen, begun)
            ids_C = np.argsort(-score_V, kind="stable")[: self.candidates]
            mass_C = masses(score_V[ids_C], temperature)
            pick = 0 if uniform is None else int(invert(mass_C, np.array(uniform[place])[None])[0])
            probs.append(mass_C / mass_C.sum())
            ids.append(ids_C)
            said.append(int(ids_C[pick]))
            sure.append(float(probs[-1][pick]))
            seen = (*seen, said[-1])
        return said, sure, ids, probs

    def opinion(self, source: Tokens, seen: Tokens, begun: int) -> Scores:
        """Score the tokens after `seen`, in a block that began at `begun`."""
        noise_V = _table((self.backend.seed, 1, begun, *source), seen, self.backend.vocab_size)
        return self.skill * self.backend.logits(source, seen) + (1 - self.skill) * noise_V

    def predict(
        self, newest: Sequence[int], state: State, known: Sequence[Sequence[int]]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Draft whole blocks; known tokens are kept and do not affect other positions."""
        guess = self.draft(newest, state, [len(row) for row in known])
        rows = zip(guess.tokens, known, strict=True)
        tokens = [[k if k >= 0 else g for g, k in zip(*row, strict=True)] for row in rows]
        return tokens, guess.confidence or []


class ReferenceSlots:
    """Implements `decoding.protocol.Slots`."""

    per_token = 2

    def __init__(self, backend: ReferenceBackend) -> None:
        self.backend = backend

    def fill(
        self, state: State, query: Query[AnswerT], known: Sequence[Sequence[int]] | None = None
    ) -> AnswerT:
        """Answer a query about the slots of whole texts; known tokens have no effect."""
        assert isinstance(state, ReferenceState)
        sources = [source for source, _ in state.rows]
        most, words = self.per_token * max(map(len, sources)), self.backend.vocab_size
        key = self.backend.seed, 2
        rows = [[_table((*key, *source), (u,), words) for u in range(most)] for source in sources]
        return query.answer(np.array(rows))


@lru_cache(maxsize=1 << 16)
def _table(key: Tokens, seen: Tokens, words: int) -> Any:
    """Return normal numbers that depend on the arguments alone."""
    scores_V = np.random.default_rng([*key, 1 << 31, *seen]).normal(0, 2, words)
    scores_V.flags.writeable = False
    return scores_V
