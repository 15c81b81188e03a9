"""Changes of vocabularies: smaller ones, new tokens, the mask token, and comparison.

A smaller vocabulary keeps the most frequent tokens and single characters: all of the source, since
a source can hold anything, and those that occur in targets. Both sides get their own.

New tokens get ids after all others. They are decoded with blanks around them, except Chinese and
Japanese marks, which tokenizers that fold marks to ASCII (NFKC, as OPUS-MT) learn this way.

A masked language model adds the mask after all other ids, and `<s> ... </s>` around every text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import processors

from outrider.errors import ConfigError, DataError
from outrider.text.tokenizer.pair import PairTokenizer
from outrider.text.tokenizer.subword import SubwordTokenizer, Tokenizer

if TYPE_CHECKING:
    from outrider.text.tokenizer.marian import MarianTokenizer

MARK = "\u2581"
"""First character of a piece at the beginning of a word."""
KEY = "words"


@dataclass(frozen=True)
class Cut:
    """A tokenizer with fewer tokens, and their old ids on each side."""

    tokenizer: Tokenizer
    source: list[int]
    target: list[int]


def cut_tokenizer(
    tokenizer: Tokenizer, source: Sequence[int], target: Sequence[int], *, words: int
) -> Cut:
    """Keep `words` tokens of each side.

    Args:
        tokenizer: A Marian tokenizer, also one of a CTranslate2 folder.
        source: How often each id occurs in sources.
        target: How often each id occurs in targets.
        words: Tokens of each side, special tokens included.
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
    """Keep the tokens of `other`, with its ids."""
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
    """Return the kept ids: `first`, then characters that occur, then the most frequent tokens."""
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
    """Whether a token is one character, or a byte of one, and is known."""
    byte = len(token) == 6 and token.startswith("<0x")
    return (byte or len(token.removeprefix(MARK)) <= 1) and known(token)


NEW_TOKENS = "data.tokenizer.new_tokens"


def add_tokens(tokenizer: Tokenizer, tokens: Sequence[str]) -> Tokenizer:
    """Return a tokenizer with further tokens; other ids do not change."""
    if not tokens:
        return tokenizer
    for token in tokens:
        if not token or any(letter.isspace() for letter in token) or tokens.count(token) > 1:
            raise ConfigError(
                NEW_TOKENS, f"got {token!r}, expected tokens without blanks, each once"
            )
    if isinstance(tokenizer, SubwordTokenizer):
        _check_unknown(tokens, tokenizer.pipeline.get_vocab())
        return _add_to_pipeline(tokenizer, tokens)
    from outrider.text.tokenizer.marian import MarianTokenizer  # needs SentencePiece

    if isinstance(tokenizer, MarianTokenizer):
        _check_unknown(tokens, {**tokenizer.names[0], **tokenizer.names[1]})
        return tokenizer.extended(tokens)
    raise ConfigError(NEW_TOKENS, "the sources are read by another tokenizer; leave it out")


def _check_unknown(tokens: Sequence[str], vocabulary: dict[str, int]) -> None:
    for token in tokens:
        if token in vocabulary:
            raise ConfigError(NEW_TOKENS, f"{token!r} is in the vocabulary already; leave it out")


def _add_to_pipeline(tokenizer: SubwordTokenizer, tokens: Sequence[str]) -> SubwordTokenizer:
    pipeline = tokenizers.Tokenizer.from_str(tokenizer.pipeline.to_str())
    # Tokens are matched in the normalised text.
    pipeline.add_tokens([tokenizers.AddedToken(token, normalized=True) for token in tokens])
    first = tokenizer.vocab_size
    if [pipeline.token_to_id(token) for token in tokens] != [*range(first, first + len(tokens))]:
        raise ConfigError(
            NEW_TOKENS, "the ids of this tokenizer have gaps, so nothing can be added"
        )
    return SubwordTokenizer(pipeline, tokenizer.special)


SPECIAL_IDS = ("pad_id", "eos_id", "unk_id", "bos_id")


def check_same_tokenizer(
    of_data: Tokenizer,
    of_model: Tokenizer,
    *,
    data: Path,
    model: str | Path,
    grown: bool = False,
) -> None:
    """Refuse the folder `data` if its ids are not those of `model`; `grown`: it may have more."""
    found = _difference(of_data, of_model, grown)
    if found:
        raise DataError(
            f"{data}: was prepared with another tokenizer than that of {model} "
            f"({found}); prepare it again with data.tokenizer.folder={model}"
        )


def _difference(data: Tokenizer, model: Tokenizer, grown: bool) -> str:
    if isinstance(data, PairTokenizer) and isinstance(model, PairTokenizer):
        if data.source.pipeline.to_str() != model.source.pipeline.to_str():
            return "their sources are read differently"
        return _difference(data.target, model.target, grown)
    if isinstance(data, PairTokenizer) or isinstance(model, PairTokenizer):
        return "only one of them has a tokenizer of its own for sources"
    if data.vocab_size != model.vocab_size and not (grown and data.vocab_size > model.vocab_size):
        return f"{data.vocab_size} tokens against {model.vocab_size}"
    for name in SPECIAL_IDS:
        if getattr(data, name) != getattr(model, name):
            return f"{name} is {getattr(data, name)} against {getattr(model, name)}"
    after = _words(model)
    before = _words(data)[: len(after)]
    if before == after:
        return ""
    token = next(i for i, pair in enumerate(zip(before, after, strict=True)) if len({*pair}) > 1)
    return f"token {token} is {before[token]!r} against {after[token]!r}"


def _words(tokenizer: Tokenizer) -> list[str]:
    """Return the token of every id."""
    if isinstance(tokenizer, SubwordTokenizer):
        names = {index: word for word, index in tokenizer.pipeline.get_vocab().items()}
        return [names.get(index, "") for index in range(tokenizer.vocab_size)]
    if hasattr(tokenizer, "names"):  # Marian's, which needs SentencePiece to be imported
        sides = [{index: word for word, index in ids.items()} for ids in tokenizer.names]
        return [" ".join(s.get(i, "") for s in sides) for i in range(tokenizer.vocab_size)]
    return tokenizer.decode_batch([[index] for index in range(tokenizer.vocab_size)])


MASK = "<mask>"


class MaskTokenizer(SubwordTokenizer):
    """A pipeline with the mask token."""

    def __init__(self, pipeline: Any, special: dict[str, str]) -> None:
        super().__init__(pipeline, {**special, "mask_token": MASK})
        self.mask_id = self._id("mask_token")


def add_mask(tokenizer: Tokenizer) -> MaskTokenizer:
    """Return the tokenizer with a mask token; other ids do not change."""
    if not isinstance(tokenizer, SubwordTokenizer):
        message = "a masked_lm needs a tokenizer of one tokenizer.json; use another, or train one"
        raise ConfigError("data.tokenizer.folder", message)
    if tokenizer.bos_id in (tokenizer.pad_id, tokenizer.eos_id):
        message = "its tokenizer has no start token, with which a masked_lm begins a text"
        raise ConfigError("data.tokenizer.folder", f"{message}; use another, or train one")
    pipeline: Any = tokenizers.Tokenizer.from_str(tokenizer.pipeline.to_str())
    pipeline.add_special_tokens([tokenizers.AddedToken(MASK, special=True, normalized=False)])
    ends = [pipeline.id_to_token(index) for index in (tokenizer.bos_id, tokenizer.eos_id)]
    pipeline.post_processor = processors.TemplateProcessing(
        single=f"{ends[0]} $A {ends[1]}",
        special_tokens=[(token, pipeline.token_to_id(token)) for token in ends],
    )
    return MaskTokenizer(pipeline, tokenizer.special)
