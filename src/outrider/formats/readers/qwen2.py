"""Qwen2: Llama, with a bias on queries, keys and values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.formats.readers.config_keys import take
from outrider.formats.readers.llama import LlamaValues, describe_llama, import_named
from outrider.formats.readers.weights import Stored
from outrider.formats.safetensors import Weight
from outrider.formats.spec import LanguageModelSpec


@dataclass(kw_only=True)
class Qwen2Values(LlamaValues):
    vocab_size: int = 151936
    intermediate_size: int = 22016
    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 32768
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None


def import_config(values: Mapping[str, Any]) -> LanguageModelSpec:
    return describe_llama(take(Qwen2Values, values))


def import_weights(
    theirs: Stored, config: LanguageModelSpec, values: Mapping[str, Any]
) -> dict[str, Weight]:
    return import_named(theirs, config, {"attention.qkv"})
