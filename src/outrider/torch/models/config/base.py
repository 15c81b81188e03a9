"""What the configs of all models know beyond their description."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from outrider.config import build_config
from outrider.formats.description import ModelDescription
from outrider.torch.nn.attention import HeadShape, load_attention
from outrider.torch.nn.family.halting_unit import HaltingConfig
from outrider.torch.nn.family.pondering import PonderingConfig

__all__ = ["ModelConfig"]


@strict
class ModelConfig(ModelDescription, PreTrainedConfig):
    """The parts that the words of a description stand for."""

    def __post_init__(self, **kwargs: Any) -> None:
        PreTrainedConfig.__post_init__(self, **kwargs)

    @property
    def halting_config(self) -> HaltingConfig | None:
        """What `halting` says, checked; None where tokens do not halt."""
        if self.halting is None:
            return None
        return build_config(HaltingConfig, self.halting, prefix="halting.")

    @property
    def pondering_config(self) -> PonderingConfig | None:
        """What `pondering` says, checked; None where cells take one step a token."""
        if self.pondering is None:
            return None
        return build_config(PonderingConfig, self.pondering, prefix="pondering.")

    def layer_attention(self, key: str, layer: int) -> dict[str, Any]:
        """Return the attention of one layer: the one given for all, or its own of a list."""
        spec = super().layer_attention(key, layer)
        if isinstance(getattr(self, key), list):
            return spec
        variant = load_attention(spec.get("kind", ""), key=f"{key}.kind")
        options: dict[str, Any] = variant.Config.for_layer(spec, layer)
        return options

    @property
    def head_shape(self) -> HeadShape:
        """The heads of every self-attention."""
        heads = self.num_attention_heads
        return HeadShape(heads, self.num_key_value_heads or heads, self.head_width)
