"""Which keys a config has: Hugging Face would take any."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from transformers import PreTrainedConfig

from outrider.errors import ConfigError, nearest

__all__ = ["check_keys"]


def check_keys(
    config_class: type[PreTrainedConfig], values: Mapping[str, Any], *, prefix: str = ""
) -> None:
    """Refuse keys that the config class does not have; Hugging Face would take any."""
    known = {field.name for field in fields(config_class)} | {"model_type"}
    for key in values:
        if key not in known and not key.startswith("_"):
            hint = nearest(key, known)
            raise ConfigError(f"{prefix}{key}", f"unknown key of {config_class.__name__}{hint}")
