"""Options of a call: what the user gave, on top of what the model asks for.

Languages that a model folder says it reads.
"""

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.bounds import check_bound
from outrider.decoding import Backend, DecodeSettings
from outrider.errors import ConfigError, ModelError, SettingsWarning
from outrider.files import read_json, read_limited

if TYPE_CHECKING:
    from outrider.decoding import DecodeConfig

__all__ = [
    "BATCH_TOKENS",
    "call_settings",
    "check_batch_tokens",
    "check_mode",
    "decode_config",
    "decode_settings",
    "forced_first",
    "model_defaults",
    "model_ends",
    "model_split",
    "source_languages",
    "warn_unapplied",
]

BATCH_TOKENS = 8192
"""Source, prompt and new tokens of all rows and beams that a batch may hold."""

UNAPPLIED = {
    **dict.fromkeys(("begin_suppress_tokens", "suppress_tokens", "sequence_bias"), 0),
    **dict.fromkeys(("exponential_decay_length_penalty", "watermarking_config"), 0),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "no_repeat_ngram_size"), 0),
    **dict.fromkeys(("encoder_repetition_penalty", "repetition_penalty", "guidance_scale"), 1),
    **dict.fromkeys(("min_length", "min_new_tokens"), 0),
}
"""Settings that change greedy text in transformers, and the number that turns each of them off."""

_ACCELERATE = "make one with outrider accelerate, or "
_TRAIN = (
    "train one with outrider train (model.type: {}, model.target: the folder of this model) "
    "and load the model folder that writes"
)


def decode_settings(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> DecodeSettings:
    """Check the options of one call; those of the last calls are known already."""
    if not options:
        return DecodeSettings(**defaults)
    values = {**defaults, **options}
    try:
        return _known_settings(tuple((key, type(value), value) for key, value in values.items()))
    except TypeError:  # a list, say, which cannot be looked up
        return decode_config(values).settings


@lru_cache(maxsize=64)
def _known_settings(values: tuple[tuple[str, type, Any], ...]) -> DecodeSettings:
    # The type is there because 1 is True, and 0 is 0.0, to whoever looks a value up.
    return decode_config({key: value for key, _, value in values}).settings


def decode_config(values: Mapping[str, Any], *, prefix: str = "") -> "DecodeConfig":
    """Check settings by name; `prefix` stands before their names in a message."""
    from outrider.config import build_config
    from outrider.decoding.config import DecodeConfig

    return build_config(DecodeConfig, values, prefix=prefix)


def call_settings(
    backend: Backend, defaults: Mapping[str, Any], options: Mapping[str, Any]
) -> DecodeSettings:
    """Check the options of one call, and that the model can do what they ask."""
    settings = decode_settings(defaults, options)
    check_mode(backend, settings)
    return settings


def check_mode(backend: Backend, config: DecodeSettings) -> None:
    """Refuse a mode for which this model lacks a part, and say how to get it."""
    if config.mode == "tandem" or (config.mode == "parallel" and config.decoder == "drafter"):
        _check_drafter(backend, config)
    elif config.mode == "parallel" and backend.slots is None:
        if config.decoder == "ctc":
            raise ModelError(f"this model has no CTC decoder; {_TRAIN.format('ctc')}")
        if backend.drafts is None:
            raise ModelError(
                "this model has neither a CTC decoder nor a drafter, one of which mode parallel "
                f"needs; {_TRAIN.format('ctc or drafter')}"
            )


def _check_drafter(backend: Backend, config: DecodeSettings) -> None:
    if backend.drafts is None:
        raise ModelError(
            f"this model has no drafter, which mode {config.mode} needs; {_ACCELERATE}"
            + _TRAIN.format("drafter")
        )
    longest = backend.drafts.longest
    if config.draft_tokens is not None and config.draft_tokens > longest:
        raise ConfigError(
            "draft_tokens",
            f"got {config.draft_tokens}, but this drafter drafts at most {longest}",
        )


def check_batch_tokens(batch_tokens: int) -> int:
    """Return the budget, or say what is wrong with it."""
    return check_bound("batch_tokens", batch_tokens)


def model_defaults(folder: Path, backend: Backend) -> dict[str, Any]:
    """Read what `generation_config.json` forbids or forces; padding is never produced."""
    path, values = _generation_config(folder)
    suppress = set() if backend.pad in backend.ends else {backend.pad}
    suppress |= _single_words(path, values.get("bad_words_ids") or [], backend.vocab_size)
    forced = _token_ids(path, "forced_eos_token_id", values)
    force_eos = not set(backend.ends).isdisjoint(forced)
    return {"suppress": tuple(sorted(suppress)), "force_eos": force_eos}


def warn_unapplied(folder: Path) -> None:
    """Warn of generation settings that would change the text in transformers; none is applied."""
    path = folder / "generation_config.json"
    if not path.exists():  # transformers then reads them there
        path = folder / "config.json"
    values = read_json(path) if path.exists() else {}
    found = [key for key, off in UNAPPLIED.items() if (one := values.get(key)) and one != off]
    words = values.get("bad_words_ids")
    if isinstance(words, list) and any(isinstance(one, list) and len(one) > 1 for one in words):
        found.append("bad_words_ids of several tokens")
    if found:
        warnings.warn(
            f"{path}: {', '.join(found)}: not applied, the text can differ from that of "
            "transformers",
            SettingsWarning,
            stacklevel=3,
        )


def model_ends(folder: Path) -> list[int]:
    """Read the end tokens that `generation_config.json` names; those of the model count too."""
    path, values = _generation_config(folder)
    return _token_ids(path, "eos_token_id", values)


def model_split(folder: Path) -> bool:
    """Whether a model wants its texts sentence by sentence, which all do that say nothing."""
    path, values = _generation_config(folder)
    split = values.get("split", True)
    if not isinstance(split, bool):
        raise ModelError(f"{path}: split must be true or false")
    return split


def forced_first(folder: Path, vocab_size: int) -> int | None:
    """Read what a decoder is to say first; older folders name it in `config.json`."""
    key = "forced_bos_token_id"
    ids: list[int] = []
    for path in (folder / "generation_config.json", folder / "config.json"):
        ids = ids or _token_ids(path, key, read_json(path) if path.exists() else {})
    if ids and not 0 <= ids[0] < vocab_size:
        raise ModelError(f"{path}: {key} is {ids[0]}, not a token of this model")
    return ids[0] if ids else None


def _single_words(path: Path, words: Any, vocab_size: int) -> set[int]:
    """Return the forbidden words of one token; longer ones the loops do not look for."""
    try:
        singles = {int(word[0]) for word in words if len(word) == 1}
    except (TypeError, ValueError, OverflowError):  # int() of infinity overflows
        raise ModelError(f"{path}: bad_words_ids must be a list of lists of token ids") from None
    return {token for token in singles if 0 <= token < vocab_size}


def _token_ids(path: Path, key: str, values: Mapping[str, Any]) -> list[int]:
    """Return one token id or a list of them as a list; nothing where the key is missing."""
    found = values.get(key)
    ids = [] if found is None else found if isinstance(found, list) else [found]
    if not all(type(token) is int for token in ids):
        raise ModelError(f"{path}: {key} must be a token id or a list of them")
    return ids


def _generation_config(folder: Path) -> tuple[Path, dict[str, Any]]:
    path = folder / "generation_config.json"
    return path, read_json(path) if path.exists() else {}


_BERGAMOT = re.compile(r"model\.([a-z]{2})[a-z]{2}\..*")
_SETTING = re.compile(r"^ +source_language: *([A-Za-z]{2,3}) *$", re.MULTILINE)
"""`data.clean.source_language` of a run."""
_CARD = re.compile(r"\A---\n(?:(?!---\n).*\n)*?language:(.*\n(?: *- .*\n)*)")
_CODE = re.compile(r"\b[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?\b")


def source_languages(folder: Path) -> tuple[str, ...]:
    """Return the languages of the texts that a model reads; none if its folder does not say.

    A model card lists the source with the target, in no certain order.
    """
    with suppress(ModelError, OSError):
        for file, key in (("metadata.json", "from_code"), ("tokenizer_config.json", "source_lang")):
            path = folder / file
            code = read_json(path).get(key) if path.is_file() else None
            if isinstance(code, str) and _CODE.fullmatch(code):
                return (code,)
        for path in folder.glob("model.*.bin"):
            if match := _BERGAMOT.fullmatch(path.name):
                return (match[1],)
        if match := _SETTING.search(_text(folder / "run.yaml")):
            return (match[1],)
        if match := _CARD.match(_text(folder / "README.md")):
            return tuple(_CODE.findall(match[1]))
    return ()


def _text(path: Path) -> str:
    return read_limited(path, limit=1 << 20).decode("utf-8", "replace") if path.is_file() else ""
