"""What stands around a text when a model reads it, and before one when it writes.

Most models read a text and an end token. Some read more: BART a token before it, multilingual
models the language it is in. What such a model writes begins with the language it is to be in: as
the decoder's first token (mBART), as the first it says (NLLB), or else the source begins with it
(MADLAD's `<2de>`, `>>deu<<` of some OPUS-MT models).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.errors import ConfigError, nearest
from outrider.text.tokenizer import Tokenizer
from outrider.text.tokenizer.subword import SubwordTokenizer

__all__ = ["PromptTemplate", "source_frame"]

LANGUAGE = re.compile(r"(?:__)?([a-z]{2,3}(?:_[A-Za-z]{2,4})?)(?:__)?")
"""A special token that is a language: `eng_Latn`, `en_XX`, `__en__`."""
WANTED = re.compile(r"<2([A-Za-z_]+)>|>>([A-Za-z_]+)<<")
"""A token that a source begins with to be translated to a language."""
SHOWN = 8


@dataclass(frozen=True)
class PromptTemplate:
    """The tokens that are no part of any text."""

    before: tuple[int, ...] = ()
    """What the encoder reads before a text."""
    after: tuple[int, ...] = ()
    """What it reads behind it."""
    start: int | None = None
    """What the decoder is given first; None for the model's own start token."""
    prompt: tuple[int, ...] = ()
    """What it is given after that."""
    languages: Mapping[str, int] = field(default_factory=dict)
    """Tokens of languages that a decoder can begin with."""
    vocabulary: Callable[[], Mapping[str, int]] = dict
    """All tokens; among them may be languages that a source can begin with."""
    starts: bool = False
    """Whether the decoder's first token is the language."""

    def between(self, source: str | None, target: str | None) -> "PromptTemplate":
        """Return the frame of texts in one language that are to be translated to another."""
        frame = self
        if source is not None:
            if not self.told:
                message = "this model is not told what it reads; leave it (--from) out"
                raise ConfigError("source_language", f"got {source!r}, but {message}")
            token, known = _find("source_language", source, self.languages), self.languages.values()
            before, after = (
                tuple(token if one in known else one for one in side)
                for side in (self.before, self.after)
            )
            frame = replace(frame, before=before, after=after)
        if target is None:
            return frame
        token = _find("target_language", target, self.languages or _wanted(self.vocabulary()))
        if not self.languages:
            return replace(frame, before=(token, *frame.before))
        return replace(frame, start=token) if self.starts else replace(frame, prompt=(token,))

    @property
    def targets(self) -> list[str]:
        """Names of the languages that can be asked for."""
        return sorted(self.languages or _wanted(self.vocabulary()))

    @property
    def source(self) -> str | None:
        """The language that the model is told it reads."""
        around = {*self.before, *self.after}
        return next((name for name, token in self.languages.items() if token in around), None)

    @property
    def told(self) -> bool:
        """Whether the model is told which language it reads."""
        return not {*self.languages.values()}.isdisjoint((*self.before, *self.after))

    def check(self) -> None:
        """Refuse to translate to no language in particular."""
        if self.languages and self.start is None and not self.prompt:
            some = ", ".join(sorted(self.languages)[:SHOWN])
            message = f"this model writes {len(self.languages)} languages ({some}, ...); name one"
            raise ConfigError("target_language", message)


def source_frame(
    tokenizer: Tokenizer, *, start: int, end: int | None, forced: int | None
) -> PromptTemplate:
    """Find what a model reads and writes around texts.

    Args:
        tokenizer: Its own may put tokens around a text.
        start: What the decoder is given first.
        end: What a source ends with where the tokenizer says nothing; None for nothing.
        forced: What the decoder is to say first.
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
    found = {}
    for token, about in pipeline.get_added_tokens_decoder().items():
        if about.special and (match := LANGUAGE.fullmatch(about.content)):
            found[match[1]] = token
    return found


def _wanted(vocabulary: Mapping[str, int]) -> dict[str, int]:
    """Return the tokens that a source can begin with to be translated to a language."""
    found = {}
    for token, number in vocabulary.items():
        if token[:1] in "<>" and (match := WANTED.fullmatch(token)):
            found[match[1] or match[2]] = number
    return found


def _find(key: str, name: str, known: Mapping[str, int]) -> int:
    if not known:  # a target: a model that is told its source has names
        message = "this model translates into one language only, which it does not name"
        raise ConfigError(key, f"got {name!r}, but {message}; leave it (--to) out")
    if name not in known:
        some = ", ".join(sorted(known)[:SHOWN])
        hint = nearest(name, known)
        raise ConfigError(key, f"unknown {name!r}{hint}; this model knows {some}, ...")
    return known[name]
