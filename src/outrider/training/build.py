"""From the `model` section of a run to a model with fresh weights."""

from huggingface_hub.errors import StrictDataclassError

from outrider.data.prepared import Prepared
from outrider.errors import ConfigError
from outrider.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig, check_keys
from outrider.training.run_config import RunConfig

__all__ = ["build_model", "build_model_config", "check_model", "context_length"]

_CLASSES = {"seq2seq": Seq2SeqConfig, "language_model": LanguageModelConfig}


def build_model(config: RunConfig, prepared: Prepared) -> Seq2Seq | LanguageModel:
    """Build the model; its weights come from the global random state."""
    built = build_model_config(config, prepared)
    if isinstance(built, Seq2SeqConfig):
        return Seq2Seq(built)
    return LanguageModel(built)


def check_model(config: RunConfig) -> None:
    """Refuse a wrong `model` section before hours are spent on preparing the data."""
    _build_config(config, dict.fromkeys(_given_keys(config), 1))


def build_model_config(
    config: RunConfig, prepared: Prepared
) -> Seq2SeqConfig | LanguageModelConfig:
    """Check every key of the section, and take from the data what the data decides."""
    tokenizer = prepared.tokenizer
    return _build_config(
        config,
        {key: getattr(tokenizer, attribute) for key, attribute in _given_keys(config).items()},
    )


def _build_config(config: RunConfig, given: dict[str, int]) -> Seq2SeqConfig | LanguageModelConfig:
    config_class = _CLASSES[config.model.type]
    values = config.model.values
    check_keys(config_class, values, prefix="model.")
    for key in values.keys() & given.keys():
        raise ConfigError(f"model.{key}", "comes from the tokenizer; leave it out")
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


def _given_keys(config: RunConfig) -> dict[str, str]:
    """Keys of the model that the tokenizer decides, and where it holds them."""
    given = {"vocab_size": "vocab_size", "pad_token_id": "pad_id", "eos_token_id": "eos_id"}
    if config.model.type == "language_model":
        return {**given, "bos_token_id": "bos_id"}
    return {**given, "decoder_start_token_id": "pad_id"}
