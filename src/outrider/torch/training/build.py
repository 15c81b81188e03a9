"""From the `model` section of a run to a model with fresh weights, or those it goes on from.

From `model.encoder` of a run to a pretrained encoder, and whether the data suits it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from outrider.data.config import Task
from outrider.data.prepared import Prepared
from outrider.errors import ConfigError, DataError, OutriderError
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
from outrider.torch.training.memory import recompute_layers
from outrider.torch.training.start import (
    NEVER,
    blank_started,
    build_started,
    check_start,
    keys_as_typed,
    started_config,
)

__all__ = [
    "SideDecoder",
    "Trained",
    "blank_model",
    "build_model",
    "build_model_config",
    "check_encoder_data",
    "check_encoder_settings",
    "check_model",
    "context_length",
    "describe_encoder",
    "encoder_folder",
    "load_teacher",
    "reads_source_end",
    "run_task",
    "target_folder",
    "writes_right_to_left",
]

_DEFAULTS = {"freeze": True, "layer": -1}


def encoder_folder(config: RunConfig) -> Path | None:
    """Where the pretrained encoder of a run lies; None if it has none."""
    asked = config.model.values.get("encoder")
    if config.model.has_target or asked is None:
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


_CLASSES = {
    "seq2seq": Seq2SeqConfig,
    "language_model": LanguageModelConfig,
    "masked_lm": MaskedLmConfig,
}
OwnConfig = Seq2SeqConfig | LanguageModelConfig | MaskedLmConfig
"""Of a model that belongs to no other."""

SideDecoder = Drafter | Ctc
"""A parallel decoder that belongs to a target."""
Trained = Seq2Seq | LanguageModel | MaskedLm | SideDecoder


def build_model(config: RunConfig, prepared: Prepared) -> Trained:
    """Build the model; its weights come from the global random state."""
    return _recomputing(config, _build_model(config, prepared))


def _recomputing(config: RunConfig, model: Trained) -> Trained:
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
        model.router.set_counts(torch.from_numpy(_count(prepared, "source_ids")))
    return model


def blank_model(config: RunConfig, vocab_size: int) -> Trained:
    """Build a run's model of fresh weights and without its data: what it costs, not what it knows.

    `vocab_size` is the tokenizer's; a model that goes on, or rides, has that of the other model.
    """
    return _recomputing(config, _blank_model(config, vocab_size))


def _blank_model(config: RunConfig, vocab_size: int) -> Trained:
    if config.model.has_target:
        folder = target_folder(config)
        found = load_config(folder)
        target = Seq2Seq(found) if isinstance(found, Seq2SeqConfig) else LanguageModel(found)
        return _bind(_build_side_decoder_config(config), target, folder)
    if config.model.start is not None:
        return blank_started(config)
    return _blank(_describe(config, vocab_size))


def _blank(built: OwnConfig) -> Seq2Seq | LanguageModel | MaskedLm:
    if isinstance(built, MaskedLmConfig):
        return MaskedLm(built)
    return Seq2Seq(built) if isinstance(built, Seq2SeqConfig) else LanguageModel(built)


def load_teacher(config: RunConfig, prepared: Prepared) -> Seq2Seq | None:
    """Load `train.teacher`, which must have the words of the data."""
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
    """Refuse a teacher that speaks of other words: it is asked what comes next."""
    folder = _teacher_folder(name)
    teacher = load_config(folder)
    assert isinstance(teacher, Seq2SeqConfig)
    if teacher.right_to_left != student.right_to_left:
        ways = ["left to right", "right to left"]
        message = (
            f"{folder} writes from {ways[teacher.right_to_left]} and the model from "
            f"{ways[student.right_to_left]}; let both write one way (right_to_left), or learn "
            "from its texts (outrider distill)"
        )
        raise ConfigError("train.teacher", message)


def _teacher_folder(name: str) -> Path:
    key = "train.teacher"
    try:
        folder = model_folder(name)
        found = load_config(folder)
    except OutriderError as error:
        raise ConfigError(key, str(error)) from None
    if not isinstance(found, Seq2SeqConfig):
        raise ConfigError(key, f"{folder} is a language model, which teaches no seq2seq")
    return folder


def check_model(config: RunConfig) -> None:
    """Refuse a wrong `model` section before hours are spent on preparing the data."""
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
    """Check every key of the section with a tokenizer that has only a size."""
    words = vocab_size + (config.model.type == "masked_lm")  # the mask is one more
    given = {**dict.fromkeys(_given_keys(config), 1), "vocab_size": words}
    return _build_config(config, given, config.data.sequence_length + 1)


def run_task(config: RunConfig) -> Task:
    """Which data a run needs; a target's is that of its drafter."""
    if config.model.has_target:
        translates = isinstance(load_config(target_folder(config)), Seq2SeqConfig)
    else:
        translates = config.model.type == "seq2seq"
    return "translation" if translates else "language_model"


def target_folder(config: RunConfig) -> Path:
    """Where the target of a drafter or a ctc decoder lies."""
    if config.model.target is None:
        message = f"is required: the folder of the model that the {config.model.type} is for"
        raise ConfigError("model.target", message)
    return model_folder(config.model.target)


def build_model_config(config: RunConfig, prepared: Prepared) -> OwnConfig:
    """Check every key of the section, and take from the data what the data decides."""
    masked = config.model.type == "masked_lm"
    tokenizer = add_mask(prepared.tokenizer) if masked else prepared.tokenizer
    given = {key: getattr(tokenizer, name) for key, name in _given_keys(config).items()}
    end = tokenizer.source.end_id if isinstance(tokenizer, PairTokenizer) else 0
    built = _build_config(config, given, context_length(prepared), end)
    if isinstance(built, Seq2SeqConfig):
        check_encoder_data(built, prepared)
    return built


def context_length(prepared: Prepared) -> int:
    """Positions of the longest training row, with its end or start token."""
    settings = prepared.manifest.config
    if prepared.manifest.task == "language_model":
        return int(settings["sequence_length"]) + 1
    return int(settings["clean"]["max_tokens"]) + 1


def reads_source_end(model: nn.Module) -> bool:
    """Whether a model, or the target of one, reads sources with their end token."""
    return bool(getattr(_own(model).config, "source_end", True))


def writes_right_to_left(model: nn.Module) -> bool:
    """Whether a model, or the target of one, writes the last token first."""
    return bool(getattr(_own(model).config, "right_to_left", False))


def _own(model: nn.Module) -> nn.Module:
    """Return the model whose texts these are."""
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
    with keys_as_typed():
        return config_class(**given, **values)


def _given_keys(config: RunConfig) -> dict[str, str]:
    """Keys of the model that the tokenizer decides, and where it holds them."""
    given = {"vocab_size": "vocab_size", "pad_token_id": "pad_id", "eos_token_id": "eos_id"}
    if config.model.type == "language_model":
        return {**given, "bos_token_id": "bos_id"}
    if config.model.type == "masked_lm":
        return {**given, "bos_token_id": "bos_id", "mask_token_id": "mask_id"}
    return {**given, "decoder_start_token_id": "pad_id"}


def _build_side_decoder(config: RunConfig, prepared: Prepared) -> SideDecoder:
    """Build a parallel decoder and bind it to its target, which learns only in a joint run."""
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
            model.set_shortlist(_commonest(prepared, built.shortlist))
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
    if config.model.type == "ctc":
        check_keys(CtcConfig, values, prefix="model.")
        with keys_as_typed():
            return CtcConfig.for_target(target, **values)
    check_keys(DrafterConfig, values, prefix="model.")
    with keys_as_typed():
        return DrafterConfig.for_target(target, **values)


def _commonest(prepared: Prepared, tokens: int) -> torch.Tensor:
    """The end token and the likeliest others, counted over all training targets."""
    count_V = _count(prepared, "target_ids")
    count_V[prepared.tokenizer.eos_id] = count_V.max() + 1
    return torch.from_numpy(np.argsort(-count_V, kind="stable")[:tokens])


def _count(prepared: Prepared, column: str) -> NDArray[np.int64]:
    """How often the training data holds every token; each row ends with the end token."""
    tokenizer, reader = prepared.tokenizer, prepared.reader("train")
    count_V = np.zeros(tokenizer.vocab_size, np.int64)
    for block in range(len(reader.block_rows)):
        ids = reader.ids(block, column).flat
        count_V += np.bincount(ids, minlength=len(count_V))
    count_V[tokenizer.eos_id] += int(reader.block_rows.sum())
    return count_V
