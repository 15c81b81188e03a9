"""The finished models of a run: `model.start`, from which it starts, and `model.target`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from outrider.config import config_key, keys_under
from outrider.data.prepared import Prepared
from outrider.errors import ConfigError, ModelError, nearest
from outrider.files.hub import model_folder
from outrider.run_config import RunConfig
from outrider.runtime.options import GenerationSettings
from outrider.text.prompt_template import source_frame
from outrider.text.tokenizer import load_tokenizer
from outrider.text.tokenizer.vocabulary import check_same_tokenizer
from outrider.torch.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig
from outrider.torch.models.folder import load_config, load_model
from outrider.torch.models.reshape import add_tokens, keep_layers, rebuild
from outrider.torch.nn.stack import Stack
from outrider.torch.training.lora import add_adapters


@contextmanager
def model_keys() -> Iterator[None]:
    """Prefix an error with its key in the `model` section."""
    try:
        with keys_under("model"):
            yield
    except StrictDataclassError as error:
        message = " ".join(str(error.__cause__ or error).split())
        raise ConfigError("model", f"a value has the wrong type: {message}") from error


_FREE = ("dropout", "attention_dropout", "activation_dropout", "feedforward_chunks")
"""Keys that change training, but not the trained function."""
NEVER = -100.0
"""Lower limit of a token's bias. Some files have a much lower one for tokens that must not be
generated; label smoothing would turn it into a huge loss.
"""
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
"""Names of parts that can be frozen, and the attributes that hold them."""


def start_folder(config: RunConfig) -> Path:
    """Return the folder of the model that a run starts from."""
    assert config.model.start is not None
    with config_key("model.start"):
        return model_folder(config.model.start)


def target_folder(config: RunConfig) -> Path:
    """Return the folder of the target of a drafter or a ctc decoder."""
    if config.model.target is None:
        message = f"is required: the folder of the model that the {config.model.type} is for"
        raise ConfigError("model.target", message)
    return model_folder(config.model.target)


def origins(config: RunConfig) -> dict[str, Path]:
    """Return the folders of `model.start` and `model.target`, if set."""
    folders = {"start": start_folder, "target": target_folder}
    return {
        key: find(config) for key, find in folders.items() if getattr(config.model, key) is not None
    }


def started_config(config: RunConfig) -> Seq2SeqConfig | LanguageModelConfig:
    """Read the config of the model that a run starts from, with all its layers."""
    folder = start_folder(config)
    with config_key("model.start"):
        loaded = load_config(folder)
    kind = "seq2seq" if isinstance(loaded, Seq2SeqConfig) else "language_model"
    if config.model.type != kind:
        message = f"got {config.model.type}, but {config.model.start} is a {kind}; write {kind}"
        raise ConfigError("model.type", message)
    return loaded


def check_start(config: RunConfig) -> None:
    """Check keys that need `model.start` or do not combine with it."""
    section = config.model
    if section.start is None:
        for key in _ONLY_STARTED:
            if getattr(section, key) is not None:
                raise ConfigError(f"model.{key}", "needs model.start")
        return
    _check_keys(section.values)
    if config.data.source_tokenizer is not None:
        raise ConfigError("data.source_tokenizer", "comes with model.start; leave it out")
    new = config.data.tokenizer.new_tokens
    if section.lora is not None and section.freeze is not None:
        raise ConfigError("model.freeze", "has no effect: model.lora freezes all but its adapters")
    if new and (section.lora is not None or "embeddings" in (section.freeze or ())):
        key = "lora" if section.lora is not None else "freeze"
        message = "freezes embeddings, but data.tokenizer.new_tokens adds to them"
        raise ConfigError(f"model.{key}", f"{message}; use one of the two")
    with torch.device("meta"):
        model = new_model(started_config(config))
    freeze(_fitted(model, config), section.freeze or ())


def refuse_start(config: RunConfig, purpose: str = "") -> None:
    """Refuse `model.start` for a kind that is always trained from fresh weights."""
    if config.model.start is not None:
        message = f"a {config.model.type} is trained from fresh weights{purpose}; leave it out"
        raise ConfigError("model.start", message)


def new_model(config: Seq2SeqConfig | LanguageModelConfig) -> Seq2Seq | LanguageModel:
    """Build a model with fresh weights."""
    return Seq2Seq(config) if isinstance(config, Seq2SeqConfig) else LanguageModel(config)


def blank_started(config: RunConfig) -> Seq2Seq | LanguageModel:
    """Build the model of `build_started` with fresh weights and without data."""
    start_config, new = started_config(config), len(config.data.tokenizer.new_tokens)
    model = _fitted(new_model(start_config), config)
    return _adapted(model, config, start_config.vocab_size, start_config.vocab_size + new)


def build_started(config: RunConfig, prepared: Prepared) -> Seq2Seq | LanguageModel:
    """Load the model, fit it to the run and to the data's tokenizer, and freeze parts of it."""
    started_config(config)
    folder, tokenizer = start_folder(config), prepared.tokenizer
    with config_key("model.start"):
        own = load_tokenizer(folder)
    check_same_tokenizer(tokenizer, own, data=prepared.folder, model=folder, grown=True)
    model = load_model(folder)
    if own.vocab_size > model.config.vocab_size or own.eos_id != model.config.end_tokens[0]:
        raise ModelError(f"{folder}: its tokenizer and its config.json do not match")
    if model.logits_bias is not None:
        model.logits_bias.data.clamp_(min=NEVER)
    return _adapted(_fitted(model, config), config, own.vocab_size, tokenizer.vocab_size)


def _adapted(
    model: Seq2Seq | LanguageModel, config: RunConfig, old_size: int, new_size: int
) -> Seq2Seq | LanguageModel:
    """Add new tokens and adapters, and freeze parts."""
    section = config.model
    if new_size > old_size:
        with model_keys():
            model = add_tokens(model, new_size, range(old_size, new_size))
    if section.lora is not None:
        add_adapters(model, section.lora)
    else:
        freeze(model, section.freeze or ())
    return model


def _fitted(model: Seq2Seq | LanguageModel, config: RunConfig) -> Seq2Seq | LanguageModel:
    """Set training options and leave out layers."""
    section = config.model
    with model_keys():
        if section.values:
            model = rebuild(model, model.state_dict(), **section.values)
        if section.keep_layers is not None:
            model = keep_layers(model, section.keep_layers.model_dump(exclude_none=True))
    return model


def check_template(folder: Path, config: Seq2SeqConfig) -> None:
    """Refuse a model whose prompt template has tokens that training does not add."""
    with config_key("model.start"):
        tokenizer = load_tokenizer(folder)
    end = config.end_tokens[0] if config.source_end else None
    forced = GenerationSettings(folder).forced_first(config.vocab_size)
    frame = source_frame(tokenizer, start=config.decoder_start_token_id, end=end, forced=forced)
    plain = () if end is None else (end,)
    if frame.before or frame.prompt or frame.start is not None or frame.after != plain:
        message = f"{folder} adds language tokens or others around its texts"
        raise ConfigError("model.start", f"{message}, which training does not support yet")


def _check_keys(values: Mapping[str, Any]) -> None:
    for key in values:
        if key not in _FREE:
            message = f"comes from model.start{nearest(key, _FREE)}; leave it out"
            raise ConfigError(f"model.{key}", message)


def freeze(model: nn.Module, names: tuple[str, ...]) -> None:
    """Freeze the named parts of a model."""
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
        raise ConfigError("model.freeze", "freezes all weights; name fewer parts")


def _parts(model: nn.Module) -> dict[str, list[nn.Module | nn.Parameter]]:
    """Return the parts of this model that can be frozen, by name."""
    parts: dict[str, list[nn.Module | nn.Parameter]] = {}
    for name, attributes in _PARTS.items():
        if name == "source_embeddings" and getattr(model, "source_tokens", None) is None:
            continue  # both sides share one table
        modules = [getattr(model, attribute, None) for attribute in attributes]
        parts[name] = [module for module in modules if module is not None]
        stack = getattr(model, name, None)
        if isinstance(stack, Stack):
            parts |= {f"{name}.{layer}": [block] for layer, block in enumerate(stack.blocks)}
    return {name: modules for name, modules in parts.items() if modules}
