"""Special tokens of a model."""

from collections.abc import Sequence
from typing import NamedTuple

from outrider.errors import ModelError
from outrider.formats.spec import ModelSpec


class SpecialTokens(NamedTuple):
    """See `decoding.protocol.Backend`."""

    start: int
    ends: tuple[int, ...]
    pad: int


def special_tokens(config: ModelSpec, more_ends: Sequence[int] = ()) -> SpecialTokens:
    """Validate and return the tokens of a config, with end tokens of `generation_config.json`."""
    ends = tuple(dict.fromkeys([*config.end_tokens, *more_ends]))
    special = SpecialTokens(config.first_token, ends, config.pad_token_id)
    if not config.end_tokens:
        raise ModelError("eos_token_id in config.json is an empty list; it must name an end token")
    ids = [("eos_token_id in config.json", end) for end in config.end_tokens]
    ids += [("eos_token_id in generation_config.json", end) for end in more_ends]
    ids += [("pad_token_id in config.json", special.pad)]
    ids += [("first token in config.json", special.start)]
    for name, value in ids:
        if not 0 <= value < config.vocab_size:
            raise ModelError(f"{name} is {value}, not a token of this model")
    return special
