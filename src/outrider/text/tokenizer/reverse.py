"""The tokenizer of the other direction: it reads what one writes, and writes what it reads."""

from outrider.errors import ConfigError
from outrider.text.tokenizer.base import Tokenizer
from outrider.text.tokenizer.subword import SubwordTokenizer

__all__ = ["reversed_tokenizer"]


def reversed_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Exchange the sides of a tokenizer."""
    if isinstance(tokenizer, SubwordTokenizer):
        return tokenizer  # both sides are read alike
    from outrider.text.tokenizer.marian import SPECIAL, MarianTokenizer  # needs SentencePiece

    if not isinstance(tokenizer, MarianTokenizer):
        raise ConfigError("reverse", "this model reads with a tokenizer that cannot write")
    read, written = tokenizer.names
    for name in SPECIAL:
        if read[name] != written[name]:
            raise ConfigError("reverse", f"the sides of this model number {name} differently")
    return tokenizer.reversed()
