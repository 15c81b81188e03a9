"""The object a user holds to continue text with a language model."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Literal, overload

from outrider.decoding import Backend, DecodeSettings, Hypothesis, Request
from outrider.decoding.controller import Controller
from outrider.decoding.request import DEFAULT_NEW_TOKENS
from outrider.decoding.statistics import Statistics
from outrider.runtime.options import BATCH_TOKENS, call_settings, check_batch_tokens
from outrider.runtime.result import Result, Work, decode_in_batches
from outrider.text.normalise import as_texts, normalise_verbatim, well_formed
from outrider.text.tokenizer import Tokenizer

__all__ = ["Generator"]


class Generator:
    """Continues prompts. Made by `outrider.load`."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        *,
        defaults: Mapping[str, Any] | None = None,
        adds_start: bool = True,
    ) -> None:
        """Hold the parts; `adds_start`: the model's start token stands before every prompt."""
        self.backend = backend
        self.adds_start = adds_start
        self.tokenizer = tokenizer
        self.defaults = dict(defaults or {})

    @overload
    def generate(
        self, prompts: str, *, batch_tokens: int = ..., stats: Literal[False] = ..., **options: Any
    ) -> str: ...
    @overload
    def generate(
        self,
        prompts: Sequence[str],
        *,
        batch_tokens: int = ...,
        stats: Literal[False] = ...,
        **options: Any,
    ) -> list[str]: ...
    @overload
    def generate(
        self, prompts: str, *, batch_tokens: int = ..., stats: Literal[True], **options: Any
    ) -> tuple[str, Statistics]: ...
    @overload
    def generate(
        self,
        prompts: Sequence[str],
        *,
        batch_tokens: int = ...,
        stats: Literal[True],
        **options: Any,
    ) -> tuple[list[str], Statistics]: ...
    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        batch_tokens: int = BATCH_TOKENS,
        stats: bool = False,
        **options: Any,
    ) -> str | list[str] | tuple[str | list[str], Statistics]:
        """Return the continuation of one prompt, or of many; the prompt itself is not repeated.

        Args:
            prompts: What to continue. Where a model counts its positions, the end of a prompt is
                kept that leaves room for `max_new_tokens`, but half of the positions always.
            batch_tokens: Bound on the tokens held in memory at once.
            stats: Return `(continuation, statistics)`: rounds, acceptance, where the time went.
            **options: Fields of `DecodeConfig`, such as `mode="tandem"` or `temperature=0.8`.
                Prompt number i draws with `seed + i`, so it can be repeated without the others.
        """
        seen = Statistics()
        results = self.results(prompts, batch_tokens=batch_tokens, stats=seen, **options)
        found = [best.text for best, *_ in results]
        answer = found[0] if isinstance(prompts, str) else found
        return (answer, seen) if stats else answer

    def results(
        self,
        prompts: str | Sequence[str],
        *,
        batch_tokens: int = BATCH_TOKENS,
        stats: Statistics | None = None,
        **options: Any,
    ) -> list[list[Result]]:
        """Like `generate`, with scores and the n-best alternatives of each prompt, best first.

        What happened while drafting is added to `stats`.
        """
        config = call_settings(self.backend, self.defaults, options)
        works = self.works(prompts, config)
        found = decode_in_batches(
            self.backend,
            [request for work in works for request in work.requests],
            config,
            batch_tokens=check_batch_tokens(batch_tokens),
            controller=self.controller,
            stats=stats,
        )
        return [work.join([one]) for work, one in zip(works, found, strict=True)]

    def works(self, prompts: str | Sequence[str], config: DecodeSettings) -> list[Work]:
        """Make prompts ready for whoever decodes; prompt number i draws with `seed + i`."""
        return [self.work(request) for request in self.requests(prompts, config)]

    def work(self, request: Request) -> Work:
        """Say how what is decoded for a request becomes a text."""
        return Work([request], partial(self._join, self.prompt_ids(request)))

    def requests(self, prompts: str | Sequence[str], config: DecodeSettings) -> list[Request]:
        """Return what a decoding loop is given for each prompt."""
        texts = [normalise_verbatim(well_formed(prompt)) for prompt in as_texts(prompts)]
        rows = [self._fit(ids, config) for ids in self.tokenizer.encode_batch(texts)]
        return [self.request(ids, seed=config.seed + row) for row, ids in enumerate(rows)]

    def request(
        self, ids: Sequence[int], *, seed: int, max_new_tokens: int | None = None
    ) -> Request:
        """Return what a decoding loop is given for the tokens of a prompt."""
        if self.adds_start or not ids:
            return Request(prompt=ids, max_new_tokens=max_new_tokens, seed=seed)
        first, *rest = ids
        return Request(start=first, prompt=rest, max_new_tokens=max_new_tokens, seed=seed)

    def prompt_ids(self, request: Request) -> list[int]:
        """Return the tokens of the prompt that a request continues."""
        return request.opening(self.backend)[request.start is None :]

    @cached_property
    def controller(self) -> Controller | None:
        """What chooses whether to draft, and how much; it learns while decoding."""
        drafts = self.backend.drafts
        return None if drafts is None else Controller(drafts.longest)

    def _join(self, prompt: Sequence[int], found: Sequence[list[Hypothesis]]) -> list[Result]:
        """Write the continuation, and its alternatives; nothing where none is there yet."""
        return [
            Result(
                self._continuation(prompt, one.tokens),
                one.score,
                one.finish,
                one.tokens,
                one.rounds,
            )
            for hypotheses in found
            for one in hypotheses
        ]

    def _fit(self, ids: list[int], config: DecodeSettings) -> list[int]:
        """Keep the end of a prompt that leaves too little room for the new tokens.

        Up to half of the positions are the prompt's whatever is asked for: it is what the new
        tokens continue, and `max_new_tokens` is a bound. Beyond that the prompt gives way.
        """
        limit = self.backend.max_length
        if limit is None:
            return ids
        new_tokens = min(config.max_new_tokens or DEFAULT_NEW_TOKENS, limit // 2)
        return ids[max(0, len(ids) - (limit - new_tokens)) :]

    def _continuation(self, prompt: Sequence[int], tokens: Sequence[int]) -> str:
        """Decode in context: a tokenizer may drop the space before the first word it sees."""
        before = self.tokenizer.decode(prompt)
        whole = self.tokenizer.decode([*prompt, *tokens])
        return whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(tokens)
