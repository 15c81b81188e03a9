"""What readers do to weights on their way into ours."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from outrider.errors import ModelError
from outrider.formats.safetensors import Weight

__all__ = ["rename", "stack"]


def rename(
    theirs: Mapping[str, Weight], names: Iterable[tuple[str, Sequence[str]]]
) -> dict[str, Weight]:
    """Give weights our names: each of ours is theirs, or several of theirs below each other."""
    ours = {}
    for name, parts in names:
        missing = [part for part in parts if part not in theirs]
        if missing:
            raise ModelError(f"the weights lack {missing[0]!r}")
        ours[name] = stack([theirs[part] for part in parts])
    return ours


def stack(parts: Sequence[Weight]) -> Weight:
    """Put weights below each other; a single one stays where it is."""
    if len(parts) == 1:
        return parts[0]
    if len({(part.kind, part.scale is None) for part in parts}) > 1:
        return Weight("float32", np.concatenate([part.as_float32() for part in parts]))
    scales = [part.scale for part in parts if part.scale is not None]
    data = np.concatenate([part.data for part in parts])
    return Weight(parts[0].kind, data, np.concatenate(scales) if scales else None)
