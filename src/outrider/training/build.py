"""From the `model` section of a run to a model with fresh weights."""

from huggingface_hub.errors import StrictDataclassError

from outrider.data.prepared import Prepared
from outrider.errors import ConfigError
from outrider.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig, check_keys
from outrider.training.run_config import RunConfig

__all__ = ["build_model", "build_model_config", "context_length"]

_CLASSES = {"seq2seq": Seq2SeqConfig, "language_model": LanguageModelConfig}


def build_model(config: RunConfig, prepared: Prepared) -> Seq2Seq | LanguageModel:
    """Build the model; its weights come from the global random state."""
    built = build_model_config(config, prepared)
    if isinstance(built, Seq2SeqConfig):
        return Seq2Seq(built)
    return LanguageModel(built)


def build_model_config(
    config: RunConfig, prepared: Prepared
) -> Seq2SeqConfig | LanguageModelConfig:
    """Check every key of the section, and take from the data what the data decides."""
    config_class = _CLASSES[config.model.type]
    values = config.model.values
    check_keys(config_class, values, prefix="model.")
    given = _given_by_data(config, prepared)
    for key in values.keys() & given.keys():
        raise ConfigError(f"model.{key}", f"is {given[key]}, from the tokenizer; leave it out")
    if config.model.type == "language_model":
        values = {"max_positions": context_length(config), **values}
    try:
        return config_class(**given, **values)
    except ConfigError as error:
        raise ConfigError(f"model.{error.key}", str(error).removeprefix(f"{error.key}: ")) from None
    except StrictDataclassError as error:
        message = " ".join(str(error.__cause__ or error).split())
        raise ConfigError("model", f"a value has the wrong type: {message}") from None


def context_length(config: RunConfig) -> int:
    """Positions of the longest training row, with its end or start token."""
    if config.model.type == "language_model":
        return config.data.sequence_length + 1
    return config.data.clean.max_tokens + 1


def _given_by_data(config: RunConfig, prepared: Prepared) -> dict[str, int]:
    tokenizer = prepared.tokenizer
    given = {
        "vocab_size": tokenizer.vocab_size,
        "pad_token_id": tokenizer.pad_id,
        "eos_token_id": tokenizer.eos_id,
    }
    if config.model.type == "language_model":
        return {**given, "bos_token_id": tokenizer.bos_id}
    return {**given, "decoder_start_token_id": tokenizer.pad_id}
