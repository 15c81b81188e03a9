"""Options of a call: what the user gave, on top of what the model asks for."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.config import build_config
from outrider.decoding import Backend, DecodeConfig
from outrider.errors import ConfigError, ModelError

__all__ = ["BATCH_TOKENS", "check_batch_tokens", "decode_config", "model_defaults"]

BATCH_TOKENS = 8192
"""Source, prompt and new tokens of all rows and beams that a batch may hold."""


def decode_config(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> DecodeConfig:
    """Check the options of one call."""
    return build_config(DecodeConfig, {**defaults, **options})


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
