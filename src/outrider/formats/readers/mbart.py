"""mBART: BART with its norms before each part, and one more behind the last layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.formats.readers.bart import BartValues, import_family, import_weights
from outrider.formats.readers.weights import take
from outrider.formats.spec import Seq2SeqSpec

__all__ = ["MBartValues", "import_config", "import_weights"]


@dataclass(kw_only=True)
class MBartValues(BartValues):
    """What a config says that leaves something out."""

    decoder_start_token_id: int | None = None


def import_config(values: Mapping[str, Any]) -> Seq2SeqSpec:
    """Read an mBART `config.json`."""
    return import_family(take(MBartValues, values), norm="pre", embedding_norm=True)
