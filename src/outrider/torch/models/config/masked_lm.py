"""The config of a masked language model."""

from typing import Any

from huggingface_hub.dataclasses import strict

from outrider.formats.description import MaskedLmDescription
from outrider.torch.models.config.base import ModelConfig
from outrider.torch.models.config.checks import check_attentions

__all__ = ["MaskedLmConfig"]


@strict
class MaskedLmConfig(MaskedLmDescription, ModelConfig):
    """An encoder alone, which names the tokens that are hidden from it."""

    def __post_init__(self, **kwargs: Any) -> None:
        ModelConfig.__post_init__(self, **kwargs)
        MaskedLmDescription.__post_init__(self)
        check_attentions(self)

    @property
    def num_hidden_layers(self) -> int:
        """Hugging Face's name for `layers`."""
        return self.layers

    @property
    def max_position_embeddings(self) -> int:
        """Hugging Face's name for `max_positions`."""
        return self.max_positions
