"""Words that a tokenizer learns after it was trained: each gets an id behind all others.

A new token is a word of its own. Wherever its letters stand in a text they become this one id, and
it is written with blanks around it, unless it is a mark of Chinese or Japanese: a tokenizer that
folds those to ASCII (NFKC, as OPUS-MT does) learns to write them so.
"""

from collections.abc import Sequence

import tokenizers

from outrider.errors import ConfigError
from outrider.text.tokenizer.base import Tokenizer
from outrider.text.tokenizer.subword import SubwordTokenizer

__all__ = ["add_tokens"]

KEY = "data.tokenizer.new_tokens"


def add_tokens(tokenizer: Tokenizer, tokens: Sequence[str]) -> Tokenizer:
    """Return a tokenizer that knows further tokens; its other ids stay what they are."""
    if not tokens:
        return tokenizer
    for token in tokens:
        if not token or any(letter.isspace() for letter in token) or tokens.count(token) > 1:
            raise ConfigError(KEY, f"got {token!r}, expected tokens without blanks, each once")
    if isinstance(tokenizer, SubwordTokenizer):
        _check_unknown(tokens, tokenizer.pipeline.get_vocab())
        return _add_to_pipeline(tokenizer, tokens)
    from outrider.text.tokenizer.marian import MarianTokenizer  # needs SentencePiece

    if isinstance(tokenizer, MarianTokenizer):
        _check_unknown(tokens, {**tokenizer.names[0], **tokenizer.names[1]})
        return tokenizer.extended(tokens)
    raise ConfigError(KEY, "the sources are read by another tokenizer; leave it out")


def _check_unknown(tokens: Sequence[str], vocabulary: dict[str, int]) -> None:
    for token in tokens:
        if token in vocabulary:
            raise ConfigError(KEY, f"{token!r} is in the vocabulary already; leave it out")


def _add_to_pipeline(tokenizer: SubwordTokenizer, tokens: Sequence[str]) -> SubwordTokenizer:
    pipeline = tokenizers.Tokenizer.from_str(tokenizer.pipeline.to_str())
    # Found in the text as it is read, blanks before it included.
    pipeline.add_tokens([tokenizers.AddedToken(token, normalized=True) for token in tokens])
    first = tokenizer.vocab_size
    if [pipeline.token_to_id(token) for token in tokens] != [*range(first, first + len(tokens))]:
        raise ConfigError(KEY, "the ids of this tokenizer have gaps, so nothing can be added")
    return SubwordTokenizer(pipeline, tokenizer.special)
