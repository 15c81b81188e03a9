"""Translation with an encoder-decoder."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from outrider.decoding import Backend, DecodeConfig, Hypothesis, Request
from outrider.decoding.statistics import Statistics
from outrider.runtime.options import BATCH_TOKENS, call_settings, check_batch_tokens
from outrider.runtime.result import LoadedModel, Result, Work
from outrider.text.normalise import as_texts, normalise
from outrider.text.prompt_template import PromptTemplate
from outrider.text.sentences import Segments, join_at, segment
from outrider.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from outrider.documents.translate import Prepared
    from outrider.runtime.revision import Reviser, Revision
    from outrider.text.glossary import Glossary

FIRST_WINDOW, LAST_WINDOW = 32, 2048
"""Lines that a stream reads ahead: few at first to start output early, more later for speed."""
_MARK = re.compile(r"[`{}%$@#&<>/\\]|__|www\.|[\u2300-\u2bff\U0001f000-\U0001faff]")
"""Characters of which every part that `marks` keeps has one."""
WINDOW_CHARACTERS = 1 << 22
"""Most characters that a stream reads ahead."""


class Translator(LoadedModel):
    """Translates texts of any length. Made by `outrider.load`."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        *,
        longest: int,
        frame: PromptTemplate | None = None,
        defaults: Mapping[str, Any] | None = None,
        split: bool = True,
        right_to_left: bool = False,
        reads: Sequence[str] = (),
        writes: str | None = None,
        several: bool = False,
    ) -> None:
        """Combine the parts.

        Args:
            backend: Execution backend.
            tokenizer: Encodes the source and decodes the target.
            longest: Most source tokens of a request, end token included.
            frame: Tokens around source and target; by default the end token after a source.
            defaults: Decode options of the model.
            split: Whether texts are translated sentence by sentence by default.
            right_to_left: Whether the model generates the last token of a text first.
            reads: Source languages, if known.
            writes: Target language, if known.
            several: Whether the model writes several languages.
        """
        super().__init__(backend, tokenizer, defaults)
        self.longest = longest
        self.frame = PromptTemplate(after=(backend.eos,)) if frame is None else frame
        self.split = split
        self.right_to_left = right_to_left
        self._reads = tuple(reads)
        self.writes, self.several = writes, several

    def between(self, source: str | None = None, target: str | None = None) -> "Translator":
        """Return a translator between two languages, which shares the model.

        Languages have the model's own names: `eng_Latn`, `en_XX`, `en` or `deu`.
        """
        other = copy(self)
        other.frame = self.frame.between(source, target)
        if target is not None:
            other.writes, other.several = target, True
        return other

    @property
    def reads(self) -> tuple[str, ...]:
        """Source languages; empty if unknown."""
        source = self.frame.source
        return self._reads if source is None else (source,)

    @overload
    def translate(
        self,
        texts: str,
        *,
        split: bool | None = ...,
        batch_tokens: int = ...,
        stats: Literal[False] = ...,
        guard: bool = ...,
        glossary: "Glossary | None" = ...,
        marks: bool = ...,
        **options: Any,
    ) -> str: ...
    @overload
    def translate(
        self,
        texts: Sequence[str],
        *,
        split: bool | None = ...,
        batch_tokens: int = ...,
        stats: Literal[False] = ...,
        guard: bool = ...,
        glossary: "Glossary | None" = ...,
        marks: bool = ...,
        **options: Any,
    ) -> list[str]: ...
    @overload
    def translate(
        self,
        texts: str,
        *,
        split: bool | None = ...,
        batch_tokens: int = ...,
        stats: Literal[True],
        guard: bool = ...,
        glossary: "Glossary | None" = ...,
        marks: bool = ...,
        **options: Any,
    ) -> tuple[str, Statistics]: ...
    @overload
    def translate(
        self,
        texts: Sequence[str],
        *,
        split: bool | None = ...,
        batch_tokens: int = ...,
        stats: Literal[True],
        guard: bool = ...,
        glossary: "Glossary | None" = ...,
        marks: bool = ...,
        **options: Any,
    ) -> tuple[list[str], Statistics]: ...
    def translate(
        self,
        texts: str | Sequence[str],
        *,
        split: bool | None = None,
        batch_tokens: int = BATCH_TOKENS,
        stats: bool = False,
        guard: bool = False,
        glossary: "Glossary | None" = None,
        marks: bool = False,
        **options: Any,
    ) -> str | list[str] | tuple[str | list[str], Statistics]:
        """Translate one text, or many together; an empty text stays empty.

        Args:
            texts: Sentences, lines or whole documents.
            split: Translate sentence by sentence, as most models were trained; with False whole
                lines, as far as they fit, for models trained on longer texts. By default the
                model's setting.
            batch_tokens: Bound on the tokens held in memory at once.
            stats: Return `(translation, statistics)`: rounds, acceptance and time.
            guard: Decode a sentence another way if its translation repeats itself, stops early, has
                no words, repeats the source or is in another language; see `Result.faults`.
            glossary: Terms and their translations, see `outrider.text.glossary.read_glossary`.
            marks: Keep placeholders, addresses, code, tags and emoji.
            **options: Fields of `DecodeConfig`, such as `mode="tandem"`, `beams=5` or
                `max_new_tokens=100`. Text number i samples with `seed + i`, so it can be repeated
                without the others.
        """
        statistics = Statistics()
        results = self.results(
            texts,
            split=split,
            batch_tokens=batch_tokens,
            stats=statistics,
            guard=guard,
            glossary=glossary,
            marks=marks,
            **options,
        )
        translations = [best.text for best, *_ in results]
        answer = translations[0] if isinstance(texts, str) else translations
        return (answer, statistics) if stats else answer

    def results(
        self,
        texts: str | Sequence[str],
        *,
        split: bool | None = None,
        batch_tokens: int = BATCH_TOKENS,
        stats: Statistics | None = None,
        guard: bool = False,
        glossary: "Glossary | None" = None,
        marks: bool = False,
        **options: Any,
    ) -> list[list[Result]]:
        """Like `translate`, with scores and n-best alternatives, best first; adds to `stats`."""
        config = call_settings(self.backend, self.defaults, options)
        check_batch_tokens(batch_tokens)
        works = self.works(texts, config, split=split, guard=guard, glossary=glossary, marks=marks)
        return self.decode(works, config, batch_tokens, stats)

    def translate_iter(
        self,
        lines: str | Iterable[str],
        *,
        split: bool | None = None,
        batch_tokens: int = BATCH_TOKENS,
        window: int | None = None,
        ready: Callable[[], bool] | None = None,
        guard: bool = False,
        glossary: "Glossary | None" = None,
        marks: bool = False,
        **options: Any,
    ) -> Iterator[str]:
        """Translate a stream line by line, in order, with bounded memory.

        Args:
            lines: Any iterable of lines; a string is one line.
            split: As in `translate`.
            batch_tokens: Bound on the tokens held in memory at once.
            window: Lines to read and translate together, 1 to answer each line immediately; by
                default 32, growing to 2048.
            ready: Whether another line is available without waiting; if not, the lines read so far
                are translated.
            guard: As in `translate`.
            glossary: As in `translate`.
            marks: As in `translate`.
            **options: Fields of `DecodeConfig`.
        """
        for results in self.results_iter(
            lines,
            split=split,
            batch_tokens=batch_tokens,
            window=window,
            ready=ready,
            guard=guard,
            glossary=glossary,
            marks=marks,
            **options,
        ):
            yield results[0].text

    def results_iter(
        self,
        lines: str | Iterable[str],
        *,
        split: bool | None = None,
        batch_tokens: int = BATCH_TOKENS,
        window: int | None = None,
        ready: Callable[[], bool] | None = None,
        stats: Statistics | None = None,
        first: int = 0,
        guard: bool = False,
        glossary: "Glossary | None" = None,
        marks: bool = False,
        **options: Any,
    ) -> Iterator[list[Result]]:
        """Like `translate_iter`, with scores and n-best alternatives; adds to `stats`.

        Line number i of `lines` samples with `seed + first + i`.
        """
        config = call_settings(self.backend, self.defaults, options)
        check_batch_tokens(batch_tokens)
        source, size = iter(as_texts(lines)), window or FIRST_WINDOW
        while chunk := _read_ahead(source, size, ready):
            texts = partial(self.works, chunk, config, split=split, first=first)
            works = texts(guard=guard, glossary=glossary, marks=marks)
            yield from self.decode(works, config, batch_tokens, stats)
            size, first = window or min(2 * size, LAST_WINDOW), first + len(chunk)

    def requests(
        self, texts: str | Sequence[str], config: DecodeConfig, *, split: bool | None = None
    ) -> list[list[Request]]:
        """Return the requests of each text, one for each segment."""
        return [work.requests for work in self.works(texts, config, split=split)]

    def works(
        self,
        texts: str | Sequence[str],
        config: DecodeConfig,
        *,
        split: bool | None = None,
        first: int = 0,
        guard: bool = False,
        glossary: "Glossary | None" = None,
        marks: bool = False,
    ) -> list[Work]:
        """Split texts into requests; text number i samples with `seed + first + i`."""
        self.frame.check()
        texts = as_texts(texts)
        prepared = _prepare(texts) if marks else {}
        texts = [prepared[n].text if n in prepared else text for n, text in enumerate(texts)]
        longest = self.longest - len(self.source([]))
        split, limit = self.split if split is None else split, config.max_new_tokens
        segmented = segment(texts, self.tokenizer, longest=longest, split=split)
        reviser = self._reviser(config, guard, glossary) if guard or glossary else None
        works = []
        for number, text in enumerate(segmented):
            seed, own, join = config.seed + first + number, config, partial(self._join, text)
            if number in prepared:
                own = config.changed(alignment=config.alignment or prepared[number].needs_alignment)
                join = partial(_finish, prepared[number], join)
            values: dict[str, Any] = {"max_new_tokens": limit, "seed": seed, "config": own}
            requests = [self.request(piece.ids, **values) for piece in text.pieces]
            if config.draft != "drafter":
                requests = [
                    replace(request, text=self._copied(piece.text))
                    for request, piece in zip(requests, text.pieces, strict=True)
                ]
            if glossary:
                requests = [
                    replace(request, config=config.changed(alignment=True))
                    if glossary.find(piece.text)
                    else request
                    for request, piece in zip(requests, text.pieces, strict=True)
                ]
            revise = partial(_revise, reviser, text, requests) if reviser else None
            works.append(Work(requests, join, text.gaps, revise))
        return works

    def _reviser(self, config: DecodeConfig, guard: bool, glossary: "Glossary | None") -> "Reviser":
        from outrider.runtime.revision import Reviser

        return Reviser(self, config, guard=guard, glossary=glossary)

    def request(self, ids: Sequence[int], *, max_new_tokens: int | None, **values: Any) -> Request:
        """Return the request for the tokens of a text; `values` are further fields of it.

        By default it allows 3 target tokens for each source token, and 30 more.
        """
        limit = max_new_tokens or 3 * len(ids) + 30
        source, frame = self.source(ids), self.frame
        return Request(source, frame.prompt, frame.start, limit, **values)

    def _copied(self, text: str) -> tuple[int, ...]:
        """Return the target tokens of a source text, from which drafts are copied."""
        (ids,) = self.tokenizer.encode_target_batch([normalise(text)])
        return self.turned(ids)

    def source(self, ids: Sequence[int]) -> list[int]:
        """Return the encoder's tokens for the tokens of a text."""
        return [*self.frame.before, *ids, *self.frame.after]

    def turned(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Convert between the order of a text and the order of generation."""
        return tuple(reversed(tokens) if self.right_to_left else tokens)

    def _join(self, text: Segments, segments: Sequence[list[Hypothesis]]) -> list[Result]:
        """Alternative k of a text joins alternative k of its segments."""
        if not segments:
            return [Result("", 0.0)]
        results = []
        for k in range(max(map(len, segments))):
            chosen = [hypotheses[min(k, len(hypotheses) - 1)] for hypotheses in segments]
            written = [self.turned(h.tokens) for h in chosen]
            parts = [self.tokenizer.decode(tokens).strip() for tokens in written]
            joined, starts = join_at(parts, text.gaps)
            alignment = None
            if any(h.alignment is not None for h in chosen):
                from outrider.text.alignment import text_links

                places = [self.turned(h.alignment or ()) for h in chosen]
                before = len(self.frame.before)
                alignment = text_links(self.tokenizer, text, written, places, starts, before=before)
            scores = [h.score for h in chosen if h.score is not None]
            cut = any(h.finish == "length" for h in chosen)
            results.append(
                Result(
                    joined,
                    sum(scores) if len(scores) == len(chosen) else None,
                    "length" if cut else "eos",
                    tuple(token for tokens in written for token in tokens),
                    tuple(round_ for h in chosen for round_ in h.rounds),
                    alignment,
                    tuple(dict.fromkeys(fault for h in chosen for fault in h.faults)),
                    tuple(term for h in chosen for term in h.missing_terms),
                )
            )
        return results


def _revise(
    reviser: "Reviser",
    text: Segments,
    requests: Sequence[Request],
    number: int,
    hypotheses: list[Hypothesis],
) -> "Revision":
    return reviser(text.pieces[number], requests[number], hypotheses)


def _prepare(texts: Sequence[str]) -> "dict[int, Prepared]":
    """Return the texts that may have parts to keep, by number."""
    numbers = [number for number, text in enumerate(texts) if _MARK.search(text)]
    if not numbers:
        return {}
    from outrider.documents.marked import MarkedText
    from outrider.documents.translate import Prepared

    return {number: Prepared(MarkedText(texts[number])) for number in numbers}


def _finish(
    prepared: "Prepared",
    join: Callable[[Sequence[list[Hypothesis]]], list[Result]],
    segments: Sequence[list[Hypothesis]],
) -> list[Result]:
    """Join the hypotheses of a text, and put back the parts that are kept."""
    if not prepared.text:
        return [Result(prepared.marked.text, 0.0)]
    results = join(segments)
    return [replace(result, text=prepared.finish(result).text) for result in results]


def _read_ahead(lines: Iterator[str], size: int, ready: Callable[[], bool] | None) -> list[str]:
    """Read up to `size` lines, fewer if they are long or the next is not ready."""
    chunk: list[str] = []
    characters = 0
    for line in lines:
        chunk.append(line)
        characters += len(line)
        if len(chunk) == size or characters > WINDOW_CHARACTERS or (ready and not ready()):
            break
    return chunk
