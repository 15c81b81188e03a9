"""`model.start`: a run that goes on from a finished model, with its architecture and tokenizer.

Errors about a model name its keys as they stand in a run config.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from outrider.data.prepared import Prepared
from outrider.errors import ConfigError, ModelError, OutriderError, nearest
from outrider.files.hub import model_folder
from outrider.run_config import RunConfig
from outrider.runtime.options import forced_first
from outrider.text.prompt_template import source_frame
from outrider.text.tokenizer import load_tokenizer
from outrider.text.tokenizer.vocabulary import check_same_tokenizer
from outrider.torch.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig
from outrider.torch.models.folder import load_config, load_model
from outrider.torch.models.reshape import add_tokens, keep_layers, rebuild
from outrider.torch.nn.stack import Stack
from outrider.torch.training.lora import add_adapters

__all__ = [
    "NEVER",
    "blank_started",
    "build_started",
    "check_start",
    "freeze",
    "keys_as_typed",
    "start_folder",
    "started_config",
]


@contextmanager
def keys_as_typed() -> Iterator[None]:
    """Put `model.` before the key of an error."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"model.{error.key}", str(error).removeprefix(f"{error.key}: ")) from None
    except StrictDataclassError as error:
        message = " ".join(str(error.__cause__ or error).split())
        raise ConfigError("model", f"a value has the wrong type: {message}") from None


_FREE = ("dropout", "attention_dropout", "activation_dropout", "feedforward_chunks")
"""Keys that change how a model is trained, but not what it computes."""
NEVER = -100.0
"""Bias of a word that may not be said. Some files have a much lower one, which says no more, but
label smoothing, which gives every word its share, would count it."""
_ONLY_STARTED = ("keep_layers", "freeze", "lora")
_PARTS = {
    "embeddings": (
        *("tokens", "source_tokens"),
        *("encoder_position", "decoder_position", "position_mlp"),
    ),
    "source_embeddings": ("source_tokens", "encoder_position"),
    "encoder": ("encoder", "pretrained", "pair"),
    "decoder": ("decoder",),
    "head": ("head", "logits_bias"),
}
"""What can be frozen, and where a model holds it."""


def start_folder(config: RunConfig) -> Path:
    """Where the model lies that a run goes on from."""
    assert config.model.start is not None
    with _under_start():
        return model_folder(config.model.start)


def started_config(config: RunConfig) -> Seq2SeqConfig | LanguageModelConfig:
    """Read what the model is that a run goes on from, before any layer is left out."""
    folder = start_folder(config)
    with _under_start():
        found = load_config(folder)
    kind = "seq2seq" if isinstance(found, Seq2SeqConfig) else "language_model"
    if config.model.type != kind:
        message = f"got {config.model.type}, but {config.model.start} is a {kind}; write {kind}"
        raise ConfigError("model.type", message)
    return found


def check_start(config: RunConfig) -> None:
    """Refuse keys that do not go with `model.start`, or without it."""
    section = config.model
    if section.start is None:
        for key in _ONLY_STARTED:
            if getattr(section, key) is not None:
                raise ConfigError(f"model.{key}", "is for a model that goes on; add model.start")
        return
    if section.type == "masked_lm":
        message = "a masked_lm learns from fresh weights; leave it out"
        raise ConfigError("model.start", message)
    if section.has_target:
        message = f"a {section.type} learns from fresh weights beside model.target; leave it out"
        raise ConfigError("model.start", message)
    _check_keys(section.values)
    if config.data.source_tokenizer is not None:
        raise ConfigError("data.source_tokenizer", "comes with model.start; leave it out")
    new = config.data.tokenizer.new_tokens
    if section.lora is not None and section.freeze is not None:
        raise ConfigError("model.freeze", "all but the adapters of model.lora is frozen anyway")
    if new and (section.lora is not None or "embeddings" in (section.freeze or ())):
        key = "lora" if section.lora is not None else "freeze"
        message = "leaves embeddings as they are, but data.tokenizer.new_tokens adds to them"
        raise ConfigError(f"model.{key}", f"{message}; use one of the two")
    found = started_config(config)
    if isinstance(found, Seq2SeqConfig):
        _check_frame(start_folder(config), found)
    with torch.device("meta"):
        model = Seq2Seq(found) if isinstance(found, Seq2SeqConfig) else LanguageModel(found)
    freeze(_fitted(model, config), section.freeze or ())


def blank_started(config: RunConfig) -> Seq2Seq | LanguageModel:
    """Build what `build_started` builds, of fresh weights and without any data."""
    found, new = started_config(config), len(config.data.tokenizer.new_tokens)
    model: Seq2Seq | LanguageModel = (
        Seq2Seq(found) if isinstance(found, Seq2SeqConfig) else LanguageModel(found)
    )
    return _adapted(_fitted(model, config), config, found.vocab_size, found.vocab_size + new)


def build_started(config: RunConfig, prepared: Prepared) -> Seq2Seq | LanguageModel:
    """Load the model, fit it to the run and to the data's tokenizer, freeze what is to stay."""
    started_config(config)
    folder, tokenizer = start_folder(config), prepared.tokenizer
    with _under_start():
        own = load_tokenizer(folder)
    check_same_tokenizer(tokenizer, own, data=prepared.folder, model=folder, grown=True)
    model = load_model(folder)
    if own.vocab_size > model.config.vocab_size or own.eos_id != model.config.end_tokens[0]:
        raise ModelError(f"{folder}: its tokenizer and its config.json do not belong together")
    if model.logits_bias is not None:
        model.logits_bias.data.clamp_(min=NEVER)
    return _adapted(_fitted(model, config), config, own.vocab_size, tokenizer.vocab_size)


def _adapted(
    model: Seq2Seq | LanguageModel, config: RunConfig, known: int, words: int
) -> Seq2Seq | LanguageModel:
    """Add words that are new, and adapters; freeze what is to stay."""
    section = config.model
    if words > known:
        with keys_as_typed():
            model = add_tokens(model, words, range(known, words))
    if section.lora is not None:
        add_adapters(model, section.lora)
    else:
        freeze(model, section.freeze or ())
    return model


def _fitted(model: Seq2Seq | LanguageModel, config: RunConfig) -> Seq2Seq | LanguageModel:
    """Leave out layers, and set how it is trained."""
    section = config.model
    with keys_as_typed():
        if section.values:
            model = rebuild(model, model.state_dict(), **section.values)
        if section.keep_layers is not None:
            model = keep_layers(model, section.keep_layers.model_dump(exclude_none=True))
    return model


def _check_frame(folder: Path, config: Seq2SeqConfig) -> None:
    """Refuse a model whose texts stand between tokens that training does not put there."""
    with _under_start():
        tokenizer = load_tokenizer(folder)
    end = config.end_tokens[0] if config.source_end else None
    forced = forced_first(folder, config.vocab_size)
    frame = source_frame(tokenizer, start=config.decoder_start_token_id, end=end, forced=forced)
    plain = () if end is None else (end,)
    if frame.before or frame.prompt or frame.start is not None or frame.after != plain:
        message = f"{folder} has tokens of languages or others around its texts"
        raise ConfigError("model.start", f"{message}, which training does not put there yet")


def _check_keys(values: Mapping[str, Any]) -> None:
    for key in values:
        if key not in _FREE:
            message = f"comes from model.start{nearest(key, _FREE)}; leave it out"
            raise ConfigError(f"model.{key}", message)


def freeze(model: nn.Module, names: tuple[str, ...]) -> None:
    """Let some parts of a model stay as they are."""
    parts = _parts(model)
    for name in names:
        if name not in parts:
            expected = ", ".join(parts)
            hint = nearest(name, parts)
            message = f"this model has no {name!r}{hint}; expected some of {expected}"
            raise ConfigError("model.freeze", message)
        for part in parts[name]:
            part.requires_grad_(False)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ConfigError("model.freeze", "leaves nothing to learn; name fewer parts")


def _parts(model: nn.Module) -> dict[str, list[nn.Module | nn.Parameter]]:
    """What of this model can be frozen, by name."""
    found: dict[str, list[nn.Module | nn.Parameter]] = {}
    for name, places in _PARTS.items():
        if name == "source_embeddings" and getattr(model, "source_tokens", None) is None:
            continue  # both sides have the same
        parts = [getattr(model, place, None) for place in places]
        found[name] = [part for part in parts if part is not None]
        stack = getattr(model, name, None)
        if isinstance(stack, Stack):
            found |= {f"{name}.{layer}": [one] for layer, one in enumerate(stack.blocks)}
    return {name: parts for name, parts in found.items() if parts}


@contextmanager
def _under_start() -> Iterator[None]:
    """Say under which key a model stands that cannot be read."""
    try:
        yield
    except OutriderError as error:
        raise ConfigError("model.start", str(error)) from None
