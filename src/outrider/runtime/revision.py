"""Decoding sentences again: with terms of a glossary, and those that have faults.

A revision is a generator: it yields requests, receives their hypotheses, or an empty list if they
cannot be decoded, and returns the hypotheses of the sentence. So a `Translator` and a server decode
them each in their own way.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, TypeVar

from outrider.decoding import DecodeConfig, Hypothesis, Request
from outrider.runtime.guards import Fault, check, rank
from outrider.text.normalise import normalise
from outrider.text.sentences import Piece, cut, join

if TYPE_CHECKING:
    from outrider.runtime.translator import Translator
    from outrider.text.glossary import Glossary

T = TypeVar("T")
Steps = Generator[list[Request], list[list[Hypothesis]], T]
Revision = Steps[list[Hypothesis]]

BEAMS = 4
"""Beams of the second attempt."""
LARGEST_PART = 0.75
"""Length of the parts of the third attempt, relative to the sentence."""
STOPPED = "deadline", "cancelled"


def advance(
    steps: Steps[T], decoded: list[list[Hypothesis]] | None
) -> tuple[list[Request], T | None]:
    """Continue a generator, with None at first; return its requests, or none and its result."""
    try:
        return (next(steps) if decoded is None else steps.send(decoded)), None
    except StopIteration as stop:
        return [], stop.value


def together(revisions: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Run generators side by side, so that their requests are decoded together."""
    results: dict[int, T] = {}
    waiting: dict[int, list[Request]] = {}
    answers: dict[int, list[list[Hypothesis]] | None] = dict.fromkeys(range(len(revisions)))
    while len(results) < len(revisions):
        for number, answer in answers.items():
            requests, result = advance(revisions[number], answer)
            if requests:
                waiting[number] = requests
            elif result is not None:
                results[number] = result
        if waiting:
            decoded = yield [request for requests in waiting.values() for request in requests]
            left = iter(decoded)
            answers = {
                number: [next(left) for _ in requests] if decoded else []
                for number, requests in waiting.items()
            }
            waiting = {}
    return [results[number] for number in range(len(revisions))]


class Reviser:
    """Revises the sentences of one call: puts terms into them, and repeats those with a fault."""

    def __init__(
        self,
        translator: "Translator",
        config: DecodeConfig,
        *,
        guard: bool = True,
        glossary: "Glossary | None" = None,
    ) -> None:
        """Prepare; without `guard` only the terms of a glossary are put."""
        self.translator, self.config, self.guard = translator, config, guard
        self.glossary, self._terms = glossary, None
        if glossary is not None:
            from outrider.runtime.terms import Terms

            self._terms = Terms(translator, config, glossary)
        greedy = config.strategy != "beam"
        self._other = DecodeConfig().changed(
            strategy="beam" if greedy else "greedy",
            beams=max(BEAMS, config.n_best),
            n_best=config.n_best if greedy else 1,
            scores=config.scores or config.n_best > 1,
            **{key: getattr(config, key) for key in ("suppress", "force_eos")},
        )
        self._plain = self._other.changed(strategy="greedy", n_best=1)

    def __call__(self, piece: Piece, request: Request, first: list[Hypothesis]) -> Revision:
        """Return the first hypotheses without a fault, or the least bad, which are marked.

        A sentence is decoded by beam search, or greedily after beam search, and then in two parts.
        """
        if first[0].finish in STOPPED:
            return first
        best = yield from self._with_terms(piece, request, first)
        least = self._fault(piece, best) if self.guard else None
        if least is None:
            return best
        for attempt in (self._again, self._in_parts):
            found = yield from attempt(piece, request)
            if not found:
                continue
            fault = self._fault(piece, found)
            if fault is None:
                return found
            if rank(fault) < rank(least):
                best, least = found, fault
        return [replace(best[0], faults=(least,)), *best[1:]]

    def _with_terms(self, piece: Piece, request: Request, hypotheses: list[Hypothesis]) -> Revision:
        """Put the terms of the glossary into all hypotheses."""
        if self._terms is None:
            return hypotheses
        steps = [self._terms.put(piece, request, one) for one in hypotheses]
        found = yield from together(steps)
        return [one for (one,) in found]

    def _fault(self, piece: Piece, hypotheses: Sequence[Hypothesis]) -> Fault | None:
        translator, best = self.translator, hypotheses[0]
        return check(
            piece.text.strip(),
            self._text(best),
            finish=best.finish,
            target=translator.writes,
            several=translator.several,
        )

    def _text(self, hypothesis: Hypothesis) -> str:
        translator = self.translator
        return translator.tokenizer.decode(translator.turned(hypothesis.tokens)).strip()

    def _again(self, piece: Piece, request: Request) -> Revision:
        other = self._aligned(self._other, request)
        decoded = yield [replace(request, config=other, needs=(0, 0))]
        return (yield from self._with_terms(piece, request, decoded[0])) if decoded else []

    def _aligned(self, config: DecodeConfig, request: Request) -> DecodeConfig:
        """Return options with alignments if the request has them."""
        return config.changed(alignment=(request.config or self.config).alignment)

    def _in_parts(self, piece: Piece, request: Request) -> Revision:
        most = ceil(LARGEST_PART * len(piece.text.strip()))
        parts = cut(piece.text, lambda part: len(part) <= most)
        if len(parts) != 2 or parts[0][-1:].isalnum():  # inside a word
            return []
        texts = [part.strip() for part in parts]
        rows = self.translator.tokenizer.encode_batch([normalise(text) for text in texts])
        if not all(rows):
            return []
        limit = self.config.max_new_tokens
        plain = self._aligned(self._plain, request)
        requests = [
            self.translator.request(ids, max_new_tokens=limit, config=plain) for ids in rows
        ]
        decoded = yield requests
        if not decoded:
            return []
        steps = [
            self._with_terms(Piece(text, ids), request, several)
            for text, ids, request, several in zip(texts, rows, requests, decoded, strict=True)
        ]
        found = yield from together(steps)
        gap = parts[0][len(parts[0].rstrip()) :]
        return [self._join([several[0] for several in found], gap, piece, rows)]

    def _join(
        self, parts: Sequence[Hypothesis], gap: str, piece: Piece, rows: Sequence[Sequence[int]]
    ) -> Hypothesis:
        """Join two parts of a sentence in the order of generation."""
        translator, (first, second) = self.translator, parts
        tokenizer, turned = translator.tokenizer, translator.turned
        text = join([self._text(part) for part in parts], [gap])
        left, right = turned(first.tokens), turned(second.tokens)
        tokens, alignment = (*left, *right), None
        if tokenizer.decode(tokens).strip() != text:  # no token holds the white space
            tokens = tuple(tokenizer.encode_target_batch([text])[0])
        elif first.alignment and second.alignment and [*rows[0], *rows[1]] == piece.ids:
            shifted = tuple(place + len(rows[0]) for place in second.alignment)
            alignment = turned((*turned(first.alignment), *turned(shifted)))
        cut_short = "length" in (first.finish, second.finish)
        scores = [part.score for part in parts if part.score is not None]
        return Hypothesis(
            turned(tokens),
            "length" if cut_short else "eos",
            sum(scores) if len(scores) == len(parts) else None,
            (*first.rounds, *second.rounds),
            alignment,
            missing_terms=(*first.missing_terms, *second.missing_terms),
        )
