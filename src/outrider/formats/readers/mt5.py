"""mT5: T5 with an untied head whose input is not scaled."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.formats.readers.config_keys import take
from outrider.formats.readers.t5 import T5Values, describe_t5, import_weights
from outrider.formats.spec import Seq2SeqSpec

__all__ = ["MT5Values", "import_config", "import_weights"]


@dataclass(kw_only=True)
class MT5Values(T5Values):
    vocab_size: int = 250112
    d_ff: int = 1024
    num_layers: int = 8
    num_heads: int = 6
    feed_forward_proj: str = "gated-gelu"
    decoder_start_token_id: int | None = 0


def import_config(values: Mapping[str, Any]) -> Seq2SeqSpec:
    return describe_t5(take(MT5Values, values), tied=False)
