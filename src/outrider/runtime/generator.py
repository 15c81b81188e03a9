"""The object a user holds to continue text with a language model."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

from outrider.data.cleaning import normalise_verbatim
from outrider.data.tokenizer import Tokenizer
from outrider.decoding import Backend, DecodeConfig, Request
from outrider.decoding.request import DEFAULT_NEW_TOKENS
from outrider.runtime.batches import decode_in_batches
from outrider.runtime.options import BATCH_TOKENS, check_batch_tokens, decode_config
from outrider.runtime.result import Result
from outrider.runtime.text import well_formed

__all__ = ["Generator"]


class Generator:
    """Continues prompts. Made by `outrider.load`."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        *,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.defaults = dict(defaults or {})

    @overload
    def generate(self, prompts: str, *, batch_tokens: int = ..., **options: Any) -> str: ...
    @overload
    def generate(
        self, prompts: Sequence[str], *, batch_tokens: int = ..., **options: Any
    ) -> list[str]: ...
    def generate(
        self, prompts: str | Sequence[str], *, batch_tokens: int = BATCH_TOKENS, **options: Any
    ) -> str | list[str]:
        """Return the continuation of one prompt, or of many; the prompt itself is not repeated.

        Args:
            prompts: What to continue. Of a prompt too long for the model the end is kept.
            batch_tokens: Bound on the tokens held in memory at once.
            **options: Fields of `DecodeConfig`, such as `temperature=0.8`. Prompt number i draws
                with `seed + i`, so it can be repeated without the others.
        """
        many = [prompts] if isinstance(prompts, str) else prompts
        found = [best.text for best, *_ in self.results(many, batch_tokens=batch_tokens, **options)]
        return found[0] if isinstance(prompts, str) else found

    def results(
        self, prompts: Sequence[str], *, batch_tokens: int = BATCH_TOKENS, **options: Any
    ) -> list[list[Result]]:
        """Like `generate`, with scores and the n-best alternatives of each prompt, best first."""
        config = decode_config(self.defaults, options)
        texts = [normalise_verbatim(well_formed(prompt)) for prompt in prompts]
        rows = [self._fit(ids, config) for ids in self.tokenizer.encode_batch(texts)]
        requests = [Request(prompt=ids, seed=config.seed + row) for row, ids in enumerate(rows)]
        found = decode_in_batches(
            self.backend, requests, config, batch_tokens=check_batch_tokens(batch_tokens)
        )
        return [
            [Result(self._continuation(ids, h.tokens), h.score, h.finish) for h in hypotheses]
            for ids, hypotheses in zip(rows, found, strict=True)
        ]

    def _fit(self, ids: list[int], config: DecodeConfig) -> list[int]:
        """Keep the end of a prompt that would leave no room for the new tokens."""
        limit = self.backend.max_length
        if limit is None:
            return ids
        new_tokens = min(config.max_new_tokens or DEFAULT_NEW_TOKENS, limit)
        room = limit - new_tokens
        return ids[max(0, len(ids) - room) :]

    def _continuation(self, prompt: Sequence[int], tokens: Sequence[int]) -> str:
        """Decode in context: a tokenizer may drop the space before the first word it sees."""
        before = self.tokenizer.decode(prompt)
        whole = self.tokenizer.decode([*prompt, *tokens])
        return whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(tokens)
