"""Text generation with a language model."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, overload

from outrider.decoding import Backend, DecodeConfig, Hypothesis, Request
from outrider.decoding.request import DEFAULT_NEW_TOKENS
from outrider.decoding.statistics import Statistics
from outrider.runtime.options import BATCH_TOKENS, call_settings, check_batch_tokens
from outrider.runtime.result import LoadedModel, Result, Work
from outrider.text.normalise import as_texts, normalise_verbatim, well_formed
from outrider.text.tokenizer import Tokenizer

Many = Sequence[str]


class Generator(LoadedModel):
    """Continues prompts. Made by `outrider.load`."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        *,
        defaults: Mapping[str, Any] | None = None,
        adds_start: bool = True,
    ) -> None:
        """Combine the parts; with `adds_start` the model's start token precedes every prompt."""
        super().__init__(backend, tokenizer, defaults)
        self.adds_start = adds_start

    @overload
    def generate(
        self, prompts: str, *, batch_tokens: int = ..., stats: Literal[False] = ..., **options: Any
    ) -> str: ...
    @overload
    def generate(
        self, prompts: str, *, batch_tokens: int = ..., stats: Literal[True], **options: Any
    ) -> tuple[str, Statistics]: ...
    @overload
    def generate(
        self, prompts: Many, *, batch_tokens: int = ..., stats: Literal[False] = ..., **options: Any
    ) -> list[str]: ...
    @overload
    def generate(
        self, prompts: Many, *, batch_tokens: int = ..., stats: Literal[True], **options: Any
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
            prompts: Many to continue. If the model has a limited number of positions, a prompt is
                cut at the beginning to leave `max_new_tokens` of them, or half of them.
            batch_tokens: Bound on the tokens held in memory at once.
            stats: Return `(continuation, statistics)`: rounds, acceptance and time.
            **options: Fields of `DecodeConfig`, such as `mode="tandem"` or `temperature=0.8`.
                Prompt number i draws with `seed + i`, so it can be repeated without the others.
        """
        statistics = Statistics()
        results = self.results(prompts, batch_tokens=batch_tokens, stats=statistics, **options)
        texts = [best.text for best, *_ in results]
        answer = texts[0] if isinstance(prompts, str) else texts
        return (answer, statistics) if stats else answer

    def results(
        self,
        prompts: str | Sequence[str],
        *,
        batch_tokens: int = BATCH_TOKENS,
        stats: Statistics | None = None,
        **options: Any,
    ) -> list[list[Result]]:
        """Like `generate`, with scores and n-best alternatives, best first; adds to `stats`."""
        config = call_settings(self.backend, self.defaults, options)
        check_batch_tokens(batch_tokens)
        return self.decode(self.works(prompts, config), config, batch_tokens, stats)

    def works(self, prompts: str | Sequence[str], config: DecodeConfig) -> list[Work]:
        """Return the work for each prompt; prompt number i samples with `seed + i`."""
        return [self.work(request) for request in self.requests(prompts, config)]

    def work(self, request: Request) -> Work:
        """Return the work for one request."""
        return Work([request], partial(self._join, self.prompt_ids(request)))

    def requests(self, prompts: str | Sequence[str], config: DecodeConfig) -> list[Request]:
        """Return the request of each prompt."""
        texts = [normalise_verbatim(well_formed(prompt)) for prompt in as_texts(prompts)]
        rows = [self._fit(ids, config) for ids in self.tokenizer.encode_batch(texts)]
        seeded = enumerate(rows, config.seed)
        return [self.request(ids, seed=seed, config=config) for seed, ids in seeded]

    def request(self, ids: Sequence[int], **values: Any) -> Request:
        """Return the request for the tokens of a prompt; `values` are further fields of it."""
        if self.adds_start or not ids:
            return Request(prompt=ids, **values)
        first, *rest = ids
        return Request(start=first, prompt=rest, **values)

    def prompt_ids(self, request: Request) -> list[int]:
        """Return the tokens of the prompt that a request continues."""
        return request.opening(self.backend)[request.start is None :]

    def _join(self, prompt: Sequence[int], segments: Sequence[list[Hypothesis]]) -> list[Result]:
        """Return the continuation and its alternatives; none if there is no segment yet."""
        return [
            Result(self._continuation(prompt, h.tokens), h.score, h.finish, h.tokens, h.rounds)
            for hypotheses in segments
            for h in hypotheses
        ]

    def _fit(self, ids: list[int], config: DecodeConfig) -> list[int]:
        """Cut a prompt at the beginning to leave positions for the new tokens.

        At least half of the positions are left to the prompt, because `max_new_tokens` is only a
        bound.
        """
        limit = self.backend.max_length
        if limit is None:
            return ids
        new_tokens = min(config.max_new_tokens or DEFAULT_NEW_TOKENS, limit // 2)
        return ids[max(0, len(ids) - (limit - new_tokens)) :]

    def _continuation(self, prompt: Sequence[int], tokens: Sequence[int]) -> str:
        """Decode in context, because a tokenizer may drop the space before its first word."""
        before = self.tokenizer.decode(prompt)
        whole = self.tokenizer.decode([*prompt, *tokens])
        return whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(tokens)
