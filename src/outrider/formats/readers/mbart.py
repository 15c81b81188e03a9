"""mBART: BART with pre-norm layers and a norm after the last layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.formats.readers.bart import BartValues, import_family, import_weights
from outrider.formats.readers.config_keys import take
from outrider.formats.spec import Seq2SeqSpec

__all__ = ["MBartValues", "import_config", "import_weights"]


@dataclass(kw_only=True)
class MBartValues(BartValues):
    decoder_start_token_id: int | None = None


def import_config(values: Mapping[str, Any]) -> Seq2SeqSpec:
    return import_family(take(MBartValues, values), norm="pre", embedding_norm=True)
