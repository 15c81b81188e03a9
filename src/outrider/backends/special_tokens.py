"""The ids a decoding loop must know."""

from typing import NamedTuple

from outrider.errors import ModelError
from outrider.models.config import LanguageModelConfig, Seq2SeqConfig

__all__ = ["SpecialTokens", "special_tokens"]


class SpecialTokens(NamedTuple):
    """See `decoding.protocol.Backend`."""

    start: int
    eos: int
    pad: int


def special_tokens(config: Seq2SeqConfig | LanguageModelConfig) -> SpecialTokens:
    """Read them from a config, which may come from anywhere."""
    eos, pad, start = config.eos_token_id, config.pad_token_id, config.first_token
    eos = eos[0] if isinstance(eos, list) else eos
    ids: dict[str, int] = {"eos_token_id": eos, "pad_token_id": pad, "first token": start}
    for name, value in ids.items():
        if not 0 <= value < config.vocab_size:
            raise ModelError(f"{name} in config.json is {value}, not a token of this model")
    return SpecialTokens(start, eos, pad)
