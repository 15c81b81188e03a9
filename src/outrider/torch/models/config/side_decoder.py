"""The configs of drafters and CTC decoders."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from outrider.formats.description import CtcDescription, DrafterDescription

__all__ = ["CtcConfig", "DrafterConfig"]


@strict
class DrafterConfig(DrafterDescription, PreTrainedConfig):
    """A drafter: its own layer, and how it is trained."""

    def __post_init__(self, **kwargs: Any) -> None:
        PreTrainedConfig.__post_init__(self, **kwargs)
        DrafterDescription.__post_init__(self)


@strict
class CtcConfig(CtcDescription, PreTrainedConfig):
    """A parallel decoder and how it is trained."""

    def __post_init__(self, **kwargs: Any) -> None:
        PreTrainedConfig.__post_init__(self, **kwargs)
        CtcDescription.__post_init__(self)
