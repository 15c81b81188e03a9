"""From `model.encoder` of a run to a pretrained encoder, and whether the data suits it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.data.prepared import Prepared
from outrider.errors import ConfigError, DataError
from outrider.files.hub import model_folder
from outrider.run_config import RunConfig
from outrider.text.tokenizer.pair import PairTokenizer
from outrider.torch.models import Seq2SeqConfig
from outrider.torch.models.folder import read_encoder
from outrider.torch.models.pretrained import longest_row

__all__ = ["check_encoder_data", "check_encoder_settings", "describe_encoder", "encoder_folder"]

_DEFAULTS = {"freeze": True, "layer": -1}


def encoder_folder(config: RunConfig) -> Path | None:
    """Where the pretrained encoder of a run lies; None if it has none."""
    asked = config.model.values.get("encoder")
    if config.model.rides or asked is None:
        return None
    if not isinstance(asked, Mapping) or not isinstance(asked.get("pretrained"), str):
        message = f"got {asked!r}, expected {{pretrained: FOLDER}}, with freeze and layer if needed"
        raise ConfigError("model.encoder", message)
    return model_folder(asked["pretrained"])


def describe_encoder(config: RunConfig, end: int) -> dict[str, Any] | None:
    """Return what a model's config says of its encoder: no place, but all that it is.

    `end` is the encoder's end token, which only its tokenizer knows.
    """
    folder = encoder_folder(config)
    if folder is None:
        return None
    asked = dict(config.model.values["encoder"])
    del asked["pretrained"]
    for key in asked.keys() & {"config", "end"}:
        raise ConfigError(f"model.encoder.{key}", "comes from the pretrained encoder; leave it out")
    return {**_DEFAULTS, **asked, "config": read_encoder(folder), "end": end}


def check_encoder_settings(config: RunConfig, encoder: Mapping[str, Any] | None) -> None:
    """Refuse a `data` section that does not suit the encoder, before anything is prepared."""
    data = config.data
    if encoder is None:
        if data.source_tokenizer is not None:
            message = "has no effect without model.encoder; leave it out"
            raise ConfigError("data.source_tokenizer", message)
        return
    if data.train is None:
        return
    if data.source_tokenizer is None and data.tokenizer.folder is None:
        name = config.model.values["encoder"]["pretrained"]
        message = "is required: the encoder reads only what its own tokenizer wrote"
        raise ConfigError("data.source_tokenizer", f"{message}; use {{folder: {name}}}")
    _check_length(data.clean.max_tokens, encoder)


def check_encoder_data(config: Seq2SeqConfig, prepared: Prepared) -> None:
    """Refuse prepared data whose sources the encoder cannot read."""
    tokenizer, encoder = prepared.tokenizer, config.encoder
    if encoder is None:
        if isinstance(tokenizer, PairTokenizer):
            message = "its sources are tokens of a pretrained encoder, but the run has none"
            raise DataError(f"{prepared.folder}: {message}; name it in model.encoder")
        return
    if not isinstance(tokenizer, PairTokenizer):
        message = "its sources are not tokens of the pretrained encoder"
        raise DataError(f"{prepared.folder}: {message}; prepare it with data.source_tokenizer")
    words = encoder["config"]["vocab_size"]
    if tokenizer.source.vocab_size > words:
        raise DataError(
            f"{prepared.folder}: the tokenizer of its sources has {tokenizer.source.vocab_size} "
            f"tokens, the pretrained encoder only {words}; they do not belong together"
        )
    _check_length(int(prepared.manifest.config["clean"]["max_tokens"]), encoder)


def _check_length(tokens: int, encoder: Mapping[str, Any]) -> None:
    longest = longest_row(encoder)
    if tokens >= longest:
        raise ConfigError(
            "data.clean.max_tokens",
            f"got {tokens}, but the pretrained encoder has {longest} positions, one of them for "
            f"the end token; use at most {longest - 1}",
        )
