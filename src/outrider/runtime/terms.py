"""Terms of a glossary in a translation.

A sentence is decoded freely first. A term whose translation is missing is put where the alignment
places it: the sentence is decoded again with everything before that place and the term as the
prompt of the decoder. So every mode and strategy writes what it would after that prompt, and tandem
writes the text of greedy decoding.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from outrider.decoding import DecodeConfig, Hypothesis, Request
from outrider.runtime.guards import check
from outrider.text.alignment import original_offsets
from outrider.text.glossary import Glossary, Match, count, is_dense, lower
from outrider.text.normalise import normalise
from outrider.text.sentences import Piece

if TYPE_CHECKING:
    from outrider.runtime.revision import Steps
    from outrider.runtime.translator import Translator

_OPENING = "([{\"'“‘„«¿¡-–—/"
"""Marks that no space follows."""
ARTICLE = 3
"""Most letters of a word before a term that is chosen again with the term: `o comitê` and `a
comissão`."""
FIRST, NEXT = 6, 16
"""Words that are tried, and most likely tokens after each among which the term is searched."""


class _Place(NamedTuple):
    """Where the translation of a term is or should be, in target tokens."""

    start: int
    end: int


class Terms:
    """Puts the terms of a glossary into the sentences of one call."""

    def __init__(self, translator: "Translator", config: DecodeConfig, glossary: Glossary) -> None:
        self.translator, self.glossary = translator, glossary
        parallel = config.mode == "parallel"
        self._config = config.changed(
            **({"mode": "ar", "strategy": "greedy"} if parallel else {}), alignment=True, n_best=1
        )

    def put(
        self, piece: Piece, request: Request, hypothesis: Hypothesis
    ) -> "Steps[list[Hypothesis]]":
        """Return a hypothesis with the terms of a sentence, and those that could not be put."""
        matches = self.glossary.find(piece.text)
        if not matches:
            return [hypothesis]
        best, fixed = hypothesis, 0
        backward = self.translator.right_to_left  # prompts are beginnings of texts
        sources = {} if backward else self._source_tokens(piece, matches)
        for _ in sources:
            missing = self._missing(matches, best)
            if not missing:
                break
            places = {
                match: self._place(best, sources[match], match, piece, fixed) for match in missing
            }
            match = min(missing, key=lambda match: places[match])
            found = yield from self._put(piece, request, best, match, places[match], sources[match])
            if found is None:
                break
            best, fixed = found
        left = tuple(match.entry[:2] for match in self._missing(matches, best))
        return [replace(best, missing_terms=left)]

    def _missing(self, matches: Sequence[Match], hypothesis: Hypothesis) -> list[Match]:
        """Return the terms that the text has less often than the source."""
        text = self._text(hypothesis.tokens)
        left = {entry: count(entry, text) for entry in {match.entry for match in matches}}
        seen: Counter[object] = Counter()
        missing = []
        for match in matches:
            seen[match.entry] += 1
            if seen[match.entry] > left[match.entry]:
                missing.append(match)
        return missing

    def _source_tokens(self, piece: Piece, matches: Sequence[Match]) -> dict[Match, set[int]]:
        """Return the places in `Request.source` of the tokens of each term."""
        translator, normal = self.translator, normalise(piece.text)
        offsets = original_offsets(piece.text, normal)
        ranges = translator.tokenizer.source_ranges(normal)[: len(piece.ids)]
        before = len(translator.frame.before)
        return {
            match: {
                before + number
                for number, (first, last) in enumerate(ranges)
                if offsets[first] < match.end and offsets[last] > match.start and first < last
            }
            for match in matches
        }

    def _place(
        self, hypothesis: Hypothesis, sources: set[int], match: Match, piece: Piece, fixed: int
    ) -> _Place:
        """Return the longest run of tokens aligned with a term, or the place by proportion."""
        tokens, aligned = hypothesis.tokens, hypothesis.alignment or ()
        runs: list[list[int]] = []
        for place in range(fixed, len(aligned)):
            if aligned[place] in sources:
                if runs and runs[-1][-1] >= place - 1:
                    runs[-1].append(place)
                else:
                    runs.append([place])
        if not runs:
            start = max(fixed, round(len(tokens) * match.start / max(1, len(piece.text))))
            run = [min(start, len(tokens))]
        else:
            run = max(runs, key=len)
        end = min(run[-1] + 1, len(tokens))
        while end < len(tokens) and not self._divides(tokens, end):
            end += 1
        return _Place(self._boundary(tokens, run[0], fixed), end)

    def _boundary(self, tokens: Sequence[int], place: int, least: int) -> int:
        """Return the beginning of the word of a token."""
        while place > least and not self._divides(tokens, place):
            place -= 1
        return place

    def _divides(self, tokens: Sequence[int], place: int) -> bool:
        """Whether a word begins with this token."""
        if place in (0, len(tokens)):
            return True
        before, after = self._raw(tokens[:place]), self._raw(tokens[: place + 1])
        left, right = before[-1:], after[len(before) : len(before) + 1]
        if is_dense(left or " ") or is_dense(right or " "):
            return True
        return not (left.isalnum() and (right.isalnum() or right == ""))

    def _put(
        self,
        piece: Piece,
        request: Request,
        old: Hypothesis,
        match: Match,
        place: _Place,
        sources: set[int],
    ) -> "Steps[tuple[Hypothesis, int] | None]":
        """Decode with a term at a place; return the text and the number of tokens up to the term.

        Of several ways the first is taken whose text has the term once and no fault.
        """
        had = count(match.entry, self._text(old.tokens))
        spare = None
        for way in self._prompts(old, match, place, piece):
            kept, forced = way
            kept = yield from self._with_article(request, kept, forced)
            prompt = (*kept, *forced)
            limit = request.max_new_tokens
            asked = replace(
                request,
                config=self._config,
                prompt=(*request.prompt, *prompt),
                max_new_tokens=None if limit is None else max(1, limit - len(prompt)),
                needs=(0, 0),
            )
            decoded = yield [asked]
            if not decoded:
                return None
            ((new, *_),) = decoded
            aligned = (old.alignment or ())[: len(kept)]
            aligned += (min(sources, default=0),) * len(forced)
            known = len(aligned) == len(prompt) and new.alignment is not None
            joined = replace(
                new,
                tokens=(*prompt, *new.tokens),
                alignment=(*aligned, *(new.alignment or ())) if known else None,
                rounds=(*old.rounds, *new.rounds),
            )
            text = self._text(joined.tokens)
            found = count(match.entry, text)
            if found > had:
                spare = spare or (joined, len(prompt))
                if found == had + 1 and check(piece.text.strip(), text, finish=new.finish) is None:
                    return joined, len(prompt)
        return spare

    def _with_article(
        self, request: Request, kept: Sequence[int], forced: Sequence[int]
    ) -> "Steps[Sequence[int]]":
        """Choose a short word before a term again: the most likely with the first token after it.

        score(w) = log p(w | before) + log p(term_1 | before, w)
        """
        if not kept or not self._is_article(kept):
            return kept
        *before, word = kept
        decoded = yield [self._likeliest(request, before, FIRST)]
        if not decoded:
            return kept
        scores = {one.tokens[0]: one.score or 0.0 for one in decoded[0] if one.tokens}
        words = [one for one in scores if self._is_article((*before, one))]
        if len(words) < 2:
            return kept
        decoded = yield [self._likeliest(request, (*before, one), NEXT) for one in words]
        found = {}
        for one, several in zip(words, decoded, strict=False):
            for after in several:
                if after.tokens == tuple(forced[:1]):
                    found[one] = scores[one] + (after.score or 0.0)
        return (*before, max(found, key=lambda one: found[one], default=word))

    def _likeliest(self, request: Request, prompt: Sequence[int], most: int) -> Request:
        """Return a request for the most likely next tokens with their log-probabilities."""
        config = self._config.changed(mode="ar", strategy="beam", beams=most, n_best=most)
        return replace(
            request,
            config=config.changed(alignment=False, candidates=1, length_penalty=1.0),
            prompt=(*request.prompt, *prompt),
            max_new_tokens=1,
            needs=(0, 0),
        )

    def _is_article(self, tokens: Sequence[int]) -> bool:
        """Whether the last token is a short word."""
        before, after = self._raw(tokens[:-1]), self._raw(tokens)
        word = after[len(before) :].strip()
        return word.isalpha() and len(word) <= ARTICLE and self._divides(tokens, len(tokens) - 1)

    def _prompts(
        self, old: Hypothesis, match: Match, place: _Place, piece: Piece
    ) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Yield what may stand before the free part: kept tokens, and those of the term."""
        entry, kept = match.entry, old.tokens[: place.start]
        first = not self._text(kept) and piece.text.lstrip()[:1].isupper()
        small = first and entry.target == lower(entry.target)
        term = entry.target[:1].upper() + entry.target[1:] if small else entry.target
        tokens = self._tokens(kept, term)
        whole = (*kept, *tokens)
        if entry.inflected and len(tokens) > 1 and not self._divides(whole, len(whole) - 1):
            yield kept, tokens[:-1]
        yield kept, tokens
        # The model would go on with the word: continue with the next one of the free text.
        following = old.tokens[place.end : place.end + 1]
        if following and self._divides(old.tokens, place.end):
            yield kept, (*tokens, *following)

    def _tokens(self, kept: Sequence[int], term: str) -> tuple[int, ...]:
        """Return the tokens of a term after others."""
        encode = self.translator.tokenizer.encode_target_batch
        before = self._raw(kept)
        dense = bool(before) and is_dense(before[-1]) and is_dense(term[0])
        attached = dense or before[-1:] in _OPENING or before[-1:].isspace()
        head, whole, alone = encode([before, before + ("" if attached else " ") + term, term])
        if before and whole[: len(head)] == head and len(whole) > len(head):
            return tuple(whole[len(head) :])
        if attached and before:
            while alone and not self._raw(alone[:1]).strip():
                alone = alone[1:]
        return tuple(alone)

    def _raw(self, tokens: Sequence[int]) -> str:
        return self.translator.tokenizer.decode(tokens)

    def _text(self, tokens: Sequence[int]) -> str:
        return self._raw(tokens).strip()
