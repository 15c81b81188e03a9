"""Scores of attention. The file name is the config name: `score: additive` is `additive.py`.

`dot` has no file: it is `scaled_dot` of queries that were multiplied by the root of their width.
"""

from importlib import import_module
from pkgutil import iter_modules

from outrider.torch.nn.score.base import ScoreBase

__all__ = ["ScoreBase", "build_score", "score_names"]


def score_names() -> list[str]:
    """Return the names accepted by `score`."""
    names = {module.name for module in iter_modules(__path__) if module.name != "base"}
    return sorted(names | {"dot"})


def build_score(
    name: str, *, heads: int, kv_heads: int, width: int, positions: int | None = None
) -> ScoreBase:
    """Build a score for heads of `width`; `positions` is the size of its table, if any."""
    module = import_module(f"{__name__}.{'scaled_dot' if name == 'dot' else name}")
    score: ScoreBase = module.Score(heads, kv_heads, width, positions)
    return score
