"""Options of a call: what the user gave, on top of what the model asks for."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from outrider.config import build_config
from outrider.decoding import Backend, DecodeConfig
from outrider.errors import ConfigError, ModelError

__all__ = [
    "BATCH_TOKENS",
    "call_config",
    "check_batch_tokens",
    "check_mode",
    "decode_config",
    "model_defaults",
    "needs_profile",
]

BATCH_TOKENS = 8192
"""Source, prompt and new tokens of all rows and beams that a batch may hold."""

_TRAIN = (
    "train one with outrider train (model.type: {}, model.target: the folder of this model) "
    "and load the model folder that writes"
)


def decode_config(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> DecodeConfig:
    """Check the options of one call; those of the last calls are known already."""
    values = {**defaults, **options}
    try:
        return _known_config(tuple((key, type(value), value) for key, value in values.items()))
    except TypeError:  # a list, say, which cannot be looked up
        return build_config(DecodeConfig, values)


@lru_cache(maxsize=64)
def _known_config(values: tuple[tuple[str, type, Any], ...]) -> DecodeConfig:
    # The type is there because 1 is True, and 0 is 0.0, to whoever looks a value up.
    return build_config(DecodeConfig, {key: value for key, _, value in values})


def call_config(
    backend: Backend, defaults: Mapping[str, Any], options: Mapping[str, Any]
) -> DecodeConfig:
    """Check the options of one call, and that the model can do what they ask."""
    config = decode_config(defaults, options)
    check_mode(backend, config)
    return config


def check_mode(backend: Backend, config: DecodeConfig) -> None:
    """Refuse a mode for which this model lacks a part, and say how to get it."""
    if config.mode == "tandem" or (config.mode == "parallel" and config.decoder == "drafter"):
        _check_drafter(backend, config)
    elif config.mode == "parallel" and not backend.has_ctc:
        if config.decoder == "ctc":
            raise ModelError(f"this model has no CTC decoder; {_TRAIN.format('ctc')}")
        if not backend.longest_draft:
            raise ModelError(
                "this model has neither a CTC decoder nor a drafter, one of which mode parallel "
                f"needs; {_TRAIN.format('ctc or drafter')}"
            )


def _check_drafter(backend: Backend, config: DecodeConfig) -> None:
    longest = backend.longest_draft
    if not longest:
        raise ModelError(
            f"this model has no drafter, which mode {config.mode} needs; {_TRAIN.format('drafter')}"
        )
    if config.draft_tokens is not None and config.draft_tokens > longest:
        raise ConfigError(
            "draft_tokens",
            f"got {config.draft_tokens}, but this drafter drafts at most {longest}",
        )


def needs_profile(config: DecodeConfig) -> bool:
    """Whether the length of drafts is to be chosen from what they cost on this machine."""
    exact = config.strategy == "greedy" and config.gamma == 0
    return config.mode == "tandem" and config.draft_tokens is None and exact


def check_batch_tokens(batch_tokens: int) -> int:
    """Return the budget, or say what is wrong with it."""
    if batch_tokens < 1:
        raise ConfigError("batch_tokens", f"got {batch_tokens}, expected 1 or more")
    return batch_tokens


def model_defaults(folder: Path, backend: Backend) -> dict[str, Any]:
    """Read what `generation_config.json` forbids or forces; padding is never produced."""
    suppress = set() if backend.pad == backend.eos else {backend.pad}
    force_eos = False
    path = folder / "generation_config.json"
    if path.is_file():
        values = _read(path)
        suppress |= _single_words(path, values.get("bad_words_ids") or [], backend.vocab_size)
        force_eos = values.get("forced_eos_token_id") == backend.eos
    return {"suppress": tuple(sorted(suppress)), "force_eos": force_eos}


def _single_words(path: Path, words: Any, vocab_size: int) -> set[int]:
    """Return the forbidden words of one token; longer ones the loops do not look for."""
    try:
        singles = {int(word[0]) for word in words if len(word) == 1}
    except (TypeError, ValueError):
        raise ModelError(f"{path}: bad_words_ids must be a list of lists of token ids") from None
    return {token for token in singles if 0 <= token < vocab_size}


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it must hold one JSON object")
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error})") from None
    return values
