"""Mistral: Llama with a sliding window in some models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.formats.readers.config_keys import take
from outrider.formats.readers.llama import LlamaValues, describe_llama, import_named
from outrider.formats.readers.weights import Stored
from outrider.formats.safetensors import Weight
from outrider.formats.spec import LanguageModelSpec


@dataclass(kw_only=True)
class MistralValues(LlamaValues):
    intermediate_size: int = 14336
    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 4096 * 32
    sliding_window: int | None = 4096


def import_config(values: Mapping[str, Any]) -> LanguageModelSpec:
    theirs = take(MistralValues, values)
    window = theirs.sliding_window
    spec = {"kind": "causal"} if window is None else {"kind": "sliding", "window": window}
    return describe_llama(theirs, attention=spec)


def import_weights(
    theirs: Stored, config: LanguageModelSpec, values: Mapping[str, Any]
) -> dict[str, Weight]:
    return import_named(theirs, config, set())
