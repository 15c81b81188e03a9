"""Fewer words: those that texts use most, and the letters with which all others can be written.

Each side gets a vocabulary of its own. A source may hold anything, so that all letters stay that
could be read; a target says only what it has learnt to say, so those that occur are enough. The
other places are for the commonest words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.errors import ConfigError
from outrider.text.tokenizer.base import Tokenizer

if TYPE_CHECKING:
    from outrider.text.tokenizer.marian import MarianTokenizer

__all__ = ["Cut", "cut_like", "cut_tokenizer"]

MARK = "\u2581"
"""Begins a piece that begins a word."""
KEY = "words"


@dataclass(frozen=True)
class Cut:
    """A tokenizer with fewer words, and which ones they were."""

    tokenizer: Tokenizer
    source: list[int]
    """For every id of the source, what it was before."""
    target: list[int]


def cut_tokenizer(
    tokenizer: Tokenizer, source: Sequence[int], target: Sequence[int], *, words: int
) -> Cut:
    """Keep so many words of each side.

    Args:
        tokenizer: A Marian tokenizer, also one of a CTranslate2 folder.
        source: How often each id occurs in sources.
        target: How often each id occurs in targets.
        words: Words of each side, special tokens among them.
    """
    tokenizer = _marian(tokenizer)
    special = [tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id]
    names = tokenizer.names
    if any(names[0][token] != index for token, index in _named(names[1], special).items()):
        raise ConfigError(KEY, "the sides number their special tokens differently")
    letters = [index for token, index in names[0].items() if _is_letter(token, tokenizer.reads)]
    kept = [
        _choose(names[0], source, [*special, *letters], words),
        _choose(names[1], target, special, words),
    ]
    sides = [_named(side, ids) for side, ids in zip(names, kept, strict=True)]
    return Cut(tokenizer.cut(list(sides[0]), list(sides[1])), *kept)


def cut_like(tokenizer: Tokenizer, other: Tokenizer) -> Cut:
    """Keep the words of `other`, as it numbers them."""
    sides = zip(_marian(tokenizer).names, _marian(other).names, strict=True)
    kept = []
    for known, wanted in sides:
        if unknown := next((token for token in wanted if token not in known), None):
            raise ConfigError(KEY, f"the other model has {unknown!r}, which is no word here")
        kept.append([known[token] for token in sorted(wanted, key=wanted.__getitem__)])
    return Cut(other, *kept)


def _marian(tokenizer: Tokenizer) -> "MarianTokenizer":
    from outrider.text.tokenizer.marian import MarianTokenizer  # needs SentencePiece

    if not isinstance(tokenizer, MarianTokenizer):
        raise ConfigError(KEY, "only words of SentencePiece tokenizers can be left out so far")
    return tokenizer


def _choose(
    ids: Mapping[str, int], counts: Sequence[int], first: Sequence[int], words: int
) -> list[int]:
    """List what stays: `first`, then letters that occur, then by how common they are."""
    if not len(first) < words <= len(ids):
        most = f"at most {len(ids)}, which is all"
        message = f"got {words}, expected over {len(first)} (special tokens and letters) and {most}"
        raise ConfigError(KEY, message)
    letters = {index for token, index in ids.items() if _is_letter(token) and counts[index]}
    rest = sorted(
        set(ids.values()) - set(first),
        key=lambda index: (index not in letters, -counts[index], index),
    )
    return [*first, *rest[: words - len(first)]]


def _named(ids: Mapping[str, int], wanted: Sequence[int]) -> dict[str, int]:
    """Return the names of ids, in the order of the ids."""
    names = {index: token for token, index in ids.items()}
    return {names[index]: index for index in wanted}


def _is_letter(token: str, known: Callable[[str], bool] = bool) -> bool:
    """Whether a token is one letter, or a byte of one, and is known."""
    byte = len(token) == 6 and token.startswith("<0x")
    return (byte or len(token.removeprefix(MARK)) <= 1) and known(token)
