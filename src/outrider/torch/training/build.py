"""Build the model of a run from its `model` section, including a pretrained encoder or target."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from outrider.data.config import Task
from outrider.data.prepared import Prepared
from outrider.errors import ConfigError, DataError
from outrider.files.hub import model_folder
from outrider.formats.spec import check_keys
from outrider.run_config import RunConfig
from outrider.text.tokenizer import load_tokenizer
from outrider.text.tokenizer.pair import PairTokenizer
from outrider.text.tokenizer.vocabulary import add_mask, check_same_tokenizer
from outrider.torch.models import (
    Drafter,
    DrafterConfig,
    LanguageModel,
    LanguageModelConfig,
    MaskedLm,
    MaskedLmConfig,
    Seq2Seq,
    Seq2SeqConfig,
    load_config,
    load_model,
)
from outrider.torch.models.configs import CtcConfig
from outrider.torch.models.ctc import Ctc
from outrider.torch.models.folder import load_ctc, load_encoder, read_encoder
from outrider.torch.models.pretrained import longest_row
from outrider.torch.training.batches import count_tokens
from outrider.torch.training.memory import recompute_layers
from outrider.torch.training.start import (
    NEVER,
    blank_started,
    build_started,
    check_start,
    config_key,
    model_keys,
    new_model,
    started_config,
)

_DEFAULTS = {"freeze": True, "layer": -1}


def encoder_folder(config: RunConfig) -> Path | None:
    """Return the folder of the run's pretrained encoder, or None."""
    section = config.model.values.get("encoder")
    if config.model.has_target or section is None:
        return None
    if not isinstance(section, Mapping) or not isinstance(section.get("pretrained"), str):
        message = f"got {section!r}, expected {{pretrained: FOLDER}}, optionally freeze and layer"
        raise ConfigError("model.encoder", message)
    return model_folder(section["pretrained"])


def describe_encoder(config: RunConfig, end: int) -> dict[str, Any] | None:
    """Return the `encoder` value of a model's config: the encoder's own config, without its path.

    `end` is the encoder's end token, which only its tokenizer defines.
    """
    folder = encoder_folder(config)
    if folder is None:
        return None
    section = dict(config.model.values["encoder"])
    del section["pretrained"]
    for key in section.keys() & {"config", "end"}:
        raise ConfigError(f"model.encoder.{key}", "comes from the pretrained encoder; leave it out")
    return {**_DEFAULTS, **section, "config": read_encoder(folder), "end": end}


def check_encoder_settings(config: RunConfig, encoder: Mapping[str, Any] | None) -> None:
    """Check that the `data` section suits the encoder, before data is prepared."""
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
        message = "is required: the encoder needs tokens of its own tokenizer"
        raise ConfigError("data.source_tokenizer", f"{message}; use {{folder: {name}}}")
    _check_length(data.clean.max_tokens, encoder)


def check_encoder_data(config: Seq2SeqConfig, prepared: Prepared) -> None:
    """Check that the encoder can read the prepared sources."""
    tokenizer, encoder = prepared.tokenizer, config.encoder
    if encoder is None:
        if isinstance(tokenizer, PairTokenizer):
            message = "its sources are tokens of a pretrained encoder, but the run has none"
            raise DataError(f"{prepared.folder}: {message}; name it in model.encoder")
        return
    if not isinstance(tokenizer, PairTokenizer):
        message = "its sources are not tokens of the pretrained encoder"
        raise DataError(f"{prepared.folder}: {message}; prepare it with data.source_tokenizer")
    encoder_vocab = encoder["config"]["vocab_size"]
    if tokenizer.source.vocab_size > encoder_vocab:
        raise DataError(
            f"{prepared.folder}: the tokenizer of its sources has {tokenizer.source.vocab_size} "
            f"tokens, the pretrained encoder only {encoder_vocab}; use the encoder's own one"
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


_CLASSES = {
    "seq2seq": Seq2SeqConfig,
    "language_model": LanguageModelConfig,
    "masked_lm": MaskedLmConfig,
}
OwnConfig = Seq2SeqConfig | LanguageModelConfig | MaskedLmConfig
"""Config of a model without a target."""

SideDecoder = Drafter | Ctc
"""A parallel decoder of a target model."""
Trained = Seq2Seq | LanguageModel | MaskedLm | SideDecoder


def build_model(config: RunConfig, prepared: Prepared) -> Trained:
    """Build the model; fresh weights are drawn from the global random state."""
    model = _build_model(config, prepared)
    if config.train.gradient_checkpointing:
        recompute_layers(model)
    return model


def _build_model(config: RunConfig, prepared: Prepared) -> Trained:
    if config.model.has_target:
        return _build_side_decoder(config, prepared)
    if config.model.start is not None:
        started = build_started(config, prepared)
        if isinstance(started, Seq2Seq):
            check_encoder_data(started.config, prepared)
        return started
    built = build_model_config(config, prepared)
    if not isinstance(built, Seq2SeqConfig):
        return _blank(built)
    model = Seq2Seq(built)
    folder = encoder_folder(config)
    if model.pretrained is not None and folder is not None:
        load_encoder(model.pretrained, folder)
    if model.router is not None:
        count_V = count_tokens(prepared, "source_ids")
        count_V[prepared.tokenizer.eos_id] += prepared.manifest.splits["train"].rows
        model.router.set_counts(torch.from_numpy(count_V))
    return model


def blank_model(config: RunConfig, vocab_size: int) -> Trained:
    """Build a run's model with fresh weights and without its data, for cost estimates.

    `vocab_size` is the tokenizer's; a run with `start` or `target` uses that of the other model.
    """
    model = _blank_model(config, vocab_size)
    if config.train.gradient_checkpointing:
        recompute_layers(model)
    return model


def _blank_model(config: RunConfig, vocab_size: int) -> Trained:
    if config.model.has_target:
        folder = target_folder(config)
        target = new_model(load_config(folder))
        return _bind(_build_side_decoder_config(config), target, folder)
    if config.model.start is not None:
        return blank_started(config)
    return _blank(_describe(config, vocab_size))


def _blank(built: OwnConfig) -> Seq2Seq | LanguageModel | MaskedLm:
    return MaskedLm(built) if isinstance(built, MaskedLmConfig) else new_model(built)


def load_teacher(config: RunConfig, prepared: Prepared) -> Seq2Seq | None:
    """Load `train.teacher`, which must have the data's vocabulary."""
    if config.train.teacher is None:
        return None
    folder = _teacher_folder(config.train.teacher)
    tokenizer = load_tokenizer(folder)
    check_same_tokenizer(prepared.tokenizer, tokenizer, data=prepared.folder, model=folder)
    teacher = load_model(folder)
    assert isinstance(teacher, Seq2Seq)
    if teacher.logits_bias is not None:
        teacher.logits_bias.data.clamp_(min=NEVER)
    return teacher


def _check_teacher(name: str, student: Seq2SeqConfig) -> None:
    """Require teacher and student to generate in the same direction."""
    folder = _teacher_folder(name)
    teacher = load_config(folder)
    assert isinstance(teacher, Seq2SeqConfig)
    if teacher.right_to_left != student.right_to_left:
        directions = ["left to right", "right to left"]
        message = (
            f"{folder} writes from {directions[teacher.right_to_left]} and the model from "
            f"{directions[student.right_to_left]}; set right_to_left to the same value, or train "
            "on its texts (outrider distill)"
        )
        raise ConfigError("train.teacher", message)


def _teacher_folder(name: str) -> Path:
    with config_key("train.teacher"):
        folder = model_folder(name)
        loaded = load_config(folder)
    if not isinstance(loaded, Seq2SeqConfig):
        message = f"{folder} is a language model; a teacher must be a seq2seq"
        raise ConfigError("train.teacher", message)
    return folder


def check_model(config: RunConfig) -> None:
    """Check the `model` section before data is prepared."""
    check_start(config)
    if config.model.has_target:
        _build_side_decoder_config(config)
        return
    if config.model.target is not None:
        message = f"has no effect on {config.model.type}; only a drafter or a ctc decoder has one"
        raise ConfigError("model.target", message)
    built = _describe(config, 2) if config.model.start is None else started_config(config)
    check_encoder_settings(config, getattr(built, "encoder", None))
    if config.train.teacher is not None and isinstance(built, Seq2SeqConfig):
        _check_teacher(config.train.teacher, built)


def _describe(config: RunConfig, vocab_size: int) -> OwnConfig:
    """Build the config from the section and a vocabulary size, before the tokenizer exists."""
    vocab_size += config.model.type == "masked_lm"  # the mask token
    given = {**dict.fromkeys(_given_keys(config), 1), "vocab_size": vocab_size}
    return _build_config(config, given, config.data.sequence_length + 1)


def run_task(config: RunConfig) -> Task:
    """Return the task of a run's data; a drafter has that of its target."""
    if config.model.has_target:
        translates = isinstance(load_config(target_folder(config)), Seq2SeqConfig)
    else:
        translates = config.model.type == "seq2seq"
    return "translation" if translates else "language_model"


def target_folder(config: RunConfig) -> Path:
    """Return the folder of the target of a drafter or a ctc decoder."""
    if config.model.target is None:
        message = f"is required: the folder of the model that the {config.model.type} is for"
        raise ConfigError("model.target", message)
    return model_folder(config.model.target)


def build_model_config(config: RunConfig, prepared: Prepared) -> OwnConfig:
    """Build the model's config from the section and the prepared data."""
    masked = config.model.type == "masked_lm"
    tokenizer = add_mask(prepared.tokenizer) if masked else prepared.tokenizer
    given = {key: getattr(tokenizer, name) for key, name in _given_keys(config).items()}
    end = tokenizer.source.end_id if isinstance(tokenizer, PairTokenizer) else 0
    built = _build_config(config, given, context_length(prepared), end)
    if isinstance(built, Seq2SeqConfig):
        check_encoder_data(built, prepared)
    return built


def context_length(prepared: Prepared) -> int:
    """Return the length of the longest training row, with its end or start token."""
    settings = prepared.manifest.config
    if prepared.manifest.task == "language_model":
        return int(settings["sequence_length"]) + 1
    return int(settings["clean"]["max_tokens"]) + 1


def reads_source_end(model: nn.Module) -> bool:
    """Whether a model, or its target, reads sources with their end token."""
    return bool(getattr(_base_model(model).config, "source_end", True))


def writes_right_to_left(model: nn.Module) -> bool:
    """Whether a model, or its target, writes the last token first."""
    return bool(getattr(_base_model(model).config, "right_to_left", False))


def _base_model(model: nn.Module) -> nn.Module:
    return model.target if isinstance(model, Drafter | Ctc) else model


def _build_config(
    config: RunConfig, given: dict[str, int], longest: int, source_end: int = 0
) -> OwnConfig:
    config_class = _CLASSES[config.model.type]
    values = config.model.values
    check_keys(config_class, values, prefix="model.")
    for key in values.keys() & given.keys():
        raise ConfigError(f"model.{key}", "comes from the tokenizer; leave it out")
    if config.model.type in ("language_model", "masked_lm"):
        values = {"max_positions": longest, **values}
    elif "encoder" in values:
        values["encoder"] = describe_encoder(config, source_end)
    with model_keys():
        return config_class(**given, **values)


def _given_keys(config: RunConfig) -> dict[str, str]:
    """Map the config keys that the tokenizer sets to the tokenizer's attributes."""
    given = {"vocab_size": "vocab_size", "pad_token_id": "pad_id", "eos_token_id": "eos_id"}
    if config.model.type == "language_model":
        return {**given, "bos_token_id": "bos_id"}
    if config.model.type == "masked_lm":
        return {**given, "bos_token_id": "bos_id", "mask_token_id": "mask_id"}
    return {**given, "decoder_start_token_id": "pad_id"}


def _build_side_decoder(config: RunConfig, prepared: Prepared) -> SideDecoder:
    """Build a parallel decoder and bind it to its target."""
    folder = target_folder(config)
    check_same_tokenizer(
        prepared.tokenizer, load_tokenizer(folder), data=prepared.folder, model=folder
    )
    built, target = _build_side_decoder_config(config), load_model(folder)
    model = _bind(built, target, folder)
    if isinstance(model, Drafter) and isinstance(built, DrafterConfig):
        if built.copy_layers:
            model.start_as_copies()
        if built.shortlist:
            model.set_shortlist(_most_frequent(prepared, built.shortlist))
    return model


def _bind(
    built: DrafterConfig | CtcConfig, target: Seq2Seq | LanguageModel, folder: Path
) -> SideDecoder:
    target.requires_grad_(isinstance(built, CtcConfig) and built.joint)
    if isinstance(built, CtcConfig):
        assert isinstance(target, Seq2Seq)
        return Ctc(built).bind(target)
    return Drafter(built).bind(target, load_ctc(folder, target))


def _build_side_decoder_config(config: RunConfig) -> DrafterConfig | CtcConfig:
    values, target = config.model.values, load_config(target_folder(config))
    config_class = CtcConfig if config.model.type == "ctc" else DrafterConfig
    check_keys(config_class, values, prefix="model.")
    with model_keys():
        return config_class.for_target(target, **values)


def _most_frequent(prepared: Prepared, tokens: int) -> torch.Tensor:
    """Return the end token and the most frequent tokens of the training targets."""
    count_V = count_tokens(prepared, "target_ids")
    count_V[prepared.tokenizer.eos_id] = count_V.max() + 1
    return torch.from_numpy(np.argsort(-count_V, kind="stable")[:tokens])
