"""Options of a call, and settings in the files of a model folder."""

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from outrider.decoding import Backend
from outrider.decoding.request import check_mode
from outrider.errors import ModelError, SettingsWarning
from outrider.files import JsonFolder, Location, read_limited
from outrider.formats.folder import CONFIG, GENERATION
from outrider.options import DecodeConfig, check_bound, decode_config

BATCH_TOKENS = 8192
"""Default budget of a batch: source, prompt and new tokens of all rows and beams."""

UNAPPLIED = {
    **dict.fromkeys(("begin_suppress_tokens", "suppress_tokens", "sequence_bias"), 0),
    **dict.fromkeys(("exponential_decay_length_penalty", "watermarking_config"), 0),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "no_repeat_ngram_size"), 0),
    **dict.fromkeys(("encoder_repetition_penalty", "repetition_penalty", "guidance_scale"), 1),
    **dict.fromkeys(("min_length", "min_new_tokens"), 0),
}
"""Settings that change greedy text in transformers, and the value that disables each."""


def decode_settings(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> DecodeConfig:
    """Validate the options of one call; recent results are cached."""
    if not options:
        return DecodeConfig().changed(**defaults)
    values = {**defaults, **options}
    try:
        return _cached_settings(tuple((key, type(value), value) for key, value in values.items()))
    except TypeError:  # a list is not hashable
        return decode_config(values)


@lru_cache(maxsize=64)
def _cached_settings(values: tuple[tuple[str, type, Any], ...]) -> DecodeConfig:
    # The type is part of the key because 1 == True and 0 == 0.0.
    return decode_config({key: value for key, _, value in values})


def call_settings(
    backend: Backend, defaults: Mapping[str, Any], options: Mapping[str, Any]
) -> DecodeConfig:
    """Validate the options of one call for this model."""
    settings = decode_settings(defaults, options)
    check_mode(backend, settings)
    return settings


def check_batch_tokens(batch_tokens: int) -> int:
    """Validate and return the token budget."""
    return check_bound("batch_tokens", batch_tokens, (1, 1 << 40))


class GenerationSettings:
    """The `generation_config.json` of a model folder, with older keys of its `config.json`."""

    def __init__(self, folder: Location) -> None:
        files = JsonFolder.of(folder)
        self.path, self.values = files.path / GENERATION, files.json(GENERATION)
        self.older_path, self.older = files.path / CONFIG, files.json(CONFIG)

    def defaults(self, backend: Backend) -> dict[str, Any]:
        """Return the decode options; padding is always suppressed."""
        suppress = set() if backend.pad in backend.ends else {backend.pad}
        words = self.values.get("bad_words_ids") or []
        suppress |= _single_tokens(self.path, words, backend.vocab_size)
        forced = _token_ids(self.path, "forced_eos_token_id", self.values)
        force_eos = not set(backend.ends).isdisjoint(forced)
        return {"suppress": tuple(sorted(suppress)), "force_eos": force_eos}

    def warn_unapplied(self) -> None:
        """Warn about settings that change the text in transformers but not here."""
        path, values = self.path, self.values
        if not path.exists():  # transformers then reads config.json
            path, values = self.older_path, self.older
        keys = [key for key, off in UNAPPLIED.items() if (v := values.get(key)) and v != off]
        words = values.get("bad_words_ids")
        if isinstance(words, list) and any(isinstance(ids, list) and len(ids) > 1 for ids in words):
            keys.append("bad_words_ids of several tokens")
        if keys:
            warnings.warn(
                f"{path}: {', '.join(keys)}: not applied, the text can differ from that of "
                "transformers",
                SettingsWarning,
                stacklevel=3,
            )

    @property
    def ends(self) -> list[int]:
        """End tokens, which add to those of the model."""
        return _token_ids(self.path, "eos_token_id", self.values)

    @property
    def split(self) -> bool:
        """Whether texts are translated sentence by sentence, which is the default."""
        split = self.values.get("split", True)
        if not isinstance(split, bool):
            raise ModelError(f"{self.path}: split must be true or false")
        return split

    def forced_first(self, vocab_size: int) -> int | None:
        """Return the forced first target token."""
        key, path = "forced_bos_token_id", self.path
        ids = _token_ids(path, key, self.values)
        if not ids:
            path, older = self.older_path, self.older
            if older.get("force_bos_token_to_be_generated") and not self.values:
                older = {**older, key: older.get(key, older.get("bos_token_id"))}
            ids = _token_ids(path, key, older)
        if ids and not 0 <= ids[0] < vocab_size:
            raise ModelError(f"{path}: {key} is {ids[0]}, not a token of this model")
        return ids[0] if ids else None


def _single_tokens(path: Path, words: Any, vocab_size: int) -> set[int]:
    """Return the forbidden words of one token; longer ones are not supported."""
    try:
        singles = {int(word[0]) for word in words if len(word) == 1}
    except (TypeError, ValueError, OverflowError) as error:  # int() of infinity overflows
        raise ModelError(f"{path}: bad_words_ids must be a list of lists of token ids") from error
    return {token for token in singles if 0 <= token < vocab_size}


def _token_ids(path: Path, key: str, values: Mapping[str, Any]) -> list[int]:
    """Return a token id or a list of them as a list; empty if the key is missing."""
    value = values.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(token) is int for token in ids):
        raise ModelError(f"{path}: {key} must be a token id or a list of them")
    return ids


_BERGAMOT = re.compile(r"model\.([a-z]{2})([a-z]{2})\..*")
_SETTING = re.compile(r"^ +(source|target)_language: *([A-Za-z]{2,3}) *$", re.MULTILINE)
"""`data.clean.source_language` and `target_language` in a run config."""
_CARD = re.compile(r"\A---\n(?:(?!---\n).*\n)*?language:(.*\n(?: *- .*\n)*)")
_CODE = re.compile(r"\b[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?\b")


def source_languages(folder: Location) -> tuple[str, ...]:
    """Return the source languages in the files of a model folder; empty if there are none.

    A model card lists source and target languages in any order.
    """
    files = JsonFolder.of(folder)
    if language := _language(files, "source"):
        return (language,)
    with suppress(ModelError, OSError):
        if match := _CARD.match(_text(files.path / "README.md")):
            return tuple(_CODE.findall(match[1]))
    return ()


def target_language_of(folder: Location) -> str | None:
    """Return the target language in the files of a model folder; None if there is none."""
    return _language(JsonFolder.of(folder), "target")


def _language(files: JsonFolder, side: Literal["source", "target"]) -> str | None:
    keys = {"source": ("from_code", "source_lang"), "target": ("to_code", "target_lang")}[side]
    with suppress(ModelError, OSError):
        for file, key in zip(("metadata.json", "tokenizer_config.json"), keys, strict=True):
            code = files.json(file).get(key)
            if isinstance(code, str) and _CODE.fullmatch(code):
                return code
        for path in files.path.glob("model.*.bin"):
            if match := _BERGAMOT.fullmatch(path.name):
                return match[1 if side == "source" else 2]
        found = dict(_SETTING.findall(_text(files.path / "run.yaml")))
        return found.get(side)
    return None


def _text(path: Path) -> str:
    return read_limited(path, limit=1 << 20).decode("utf-8", "replace") if path.is_file() else ""
