"""The config of a decoder-only language model."""

from typing import Any

from huggingface_hub.dataclasses import strict

from outrider.formats.description import LanguageModelDescription
from outrider.torch.models.config.base import ModelConfig
from outrider.torch.models.config.checks import check_attentions

__all__ = ["LanguageModelConfig"]


@strict
class LanguageModelConfig(LanguageModelDescription, ModelConfig):
    """A decoder-only language model."""

    is_decoder: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        ModelConfig.__post_init__(self, **kwargs)
        LanguageModelDescription.__post_init__(self)
        check_attentions(self)

    @property
    def num_hidden_layers(self) -> int:
        """Hugging Face's name for `layers`."""
        return self.layers
