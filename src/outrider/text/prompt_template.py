"""Special tokens around a source, and at the beginning of the decoder's input.

Most models read a text and an end token. BART reads a token before the text, multilingual models
the source language. The target language is the decoder's first token (mBART), the first generated
token (NLLB), or the first token of the source (MADLAD's `<2de>`, `>>deu<<` of some OPUS-MT models).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.errors import ConfigError, nearest
from outrider.text.tokenizer import Tokenizer
from outrider.text.tokenizer.subword import SubwordTokenizer

LANGUAGE = re.compile(r"(?:__)?([a-z]{2,3}(?:_[A-Za-z]{2,4})?)(?:__)?")
"""A special token of a language: `eng_Latn`, `en_XX`, `__en__`."""
TARGET_LANGUAGE = re.compile(r"<2([A-Za-z_]+)>|>>([A-Za-z_]+)<<")
"""A token of the target language at the beginning of a source."""
SHOWN = 8


@dataclass(frozen=True)
class PromptTemplate:
    """The special tokens around texts."""

    before: tuple[int, ...] = ()
    """Tokens before a source."""
    after: tuple[int, ...] = ()
    """Tokens after a source."""
    start: int | None = None
    """First token of the decoder; None for the model's own start token."""
    prompt: tuple[int, ...] = ()
    """Further tokens of the decoder's prompt."""
    languages: Mapping[str, int] = field(default_factory=dict)
    """Tokens of languages that the decoder can begin with."""
    vocabulary: Callable[[], Mapping[str, int]] = dict
    """All tokens, which may include target languages for the beginning of a source."""
    starts: bool = False
    """Whether the decoder's first token is the language."""

    def between(self, source: str | None, target: str | None) -> "PromptTemplate":
        """Return the template for a source and a target language."""
        template = self
        if source is not None:
            if self.source is None:
                message = "this model does not read the source language; leave it (--from) out"
                raise ConfigError("source_language", f"got {source!r}, but {message}")
            language, known = _find("source_language", source, self.languages), self.languages
            before, after = (
                tuple(language if token in known.values() else token for token in side)
                for side in (self.before, self.after)
            )
            template = replace(template, before=before, after=after)
        if target is None:
            return template
        language = _find("target_language", target, self._target_tokens())
        if not self.languages:
            return replace(template, before=(language, *template.before))
        if self.starts:
            return replace(template, start=language)
        return replace(template, prompt=(language,))

    def _target_tokens(self) -> Mapping[str, int]:
        if self.languages:
            return self.languages
        tokens = self.vocabulary().items()
        matches = ((TARGET_LANGUAGE.fullmatch(t), index) for t, index in tokens if t[:1] in "<>")
        return {match[1] or match[2]: index for match, index in matches if match}

    @property
    def targets(self) -> list[str]:
        """Names of the target languages."""
        return sorted(self._target_tokens())

    @property
    def source(self) -> str | None:
        """The source language that the model reads; None if it reads none."""
        around = {*self.before, *self.after}
        return next((name for name, token in self.languages.items() if token in around), None)

    def check(self) -> None:
        """Require a target language where the model has several."""
        if self.languages and self.start is None and not self.prompt:
            some = ", ".join(sorted(self.languages)[:SHOWN])
            message = f"this model writes {len(self.languages)} languages ({some}, ...); name one"
            raise ConfigError("target_language", message)


def source_frame(
    tokenizer: Tokenizer, *, start: int, end: int | None, forced: int | None
) -> PromptTemplate:
    """Return the template of a model.

    Args:
        tokenizer: Its post-processor may add tokens around a text.
        start: First token of the decoder.
        end: End token of a source if the tokenizer adds no tokens; None for none.
        forced: Token that the decoder must generate first.
    """
    after = () if end is None else (end,)
    if not isinstance(tokenizer, SubwordTokenizer):
        names: Mapping[str, int] = getattr(tokenizer, "names", ({},))[0]
        return PromptTemplate(after=after, vocabulary=lambda: names)
    before, behind = tokenizer.around
    languages = _languages(tokenizer.pipeline)
    starts = start in languages.values()
    return PromptTemplate(
        tuple(before),
        tuple(behind) if before or behind else after,
        start if starts else None,
        () if forced is None else (forced,),
        languages,
        tokenizer.pipeline.get_vocab,
        starts,
    )


def _languages(pipeline: Any) -> dict[str, int]:
    """Return the special tokens that are languages."""
    languages = {}
    for index, token in pipeline.get_added_tokens_decoder().items():
        if token.special and (match := LANGUAGE.fullmatch(token.content)):
            languages[match[1]] = index
    return languages


def _find(key: str, name: str, known: Mapping[str, int]) -> int:
    if not known:  # only possible for a target
        message = "this model translates into one language only, which it does not name"
        raise ConfigError(key, f"got {name!r}, but {message}; leave it (--to) out")
    if name not in known:
        some = ", ".join(sorted(known)[:SHOWN])
        hint = nearest(name, known)
        raise ConfigError(key, f"unknown {name!r}{hint}; this model knows {some}, ...")
    return known[name]
