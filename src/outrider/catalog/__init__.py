"""Models by name: `de-en` is found among the downloaded models, or downloaded from a public list.

The lists, in this order: Mozilla's model registry, Firefox's Remote Settings, and OPUS-MT on the
Hub; or only the one that `--index` or `OUTRIDER_INDEX` names. Downloaded models are folders in the
cache (`store.py`).
"""

from outrider.catalog.find import Catalog, find_model, is_offline
from outrider.catalog.index import Entry, Pair

__all__ = ["Catalog", "Entry", "Pair", "find_model", "is_offline"]
