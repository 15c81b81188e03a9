"""What readers do to weights on their way into ours."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from outrider.errors import ModelError
from outrider.formats.safetensors import Weight

__all__ = ["first_of", "prefixed", "rename", "scaled", "stack", "transposed", "zeros"]


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


def prefixed(theirs: Mapping[str, Weight], prefix: str, but: Sequence[str]) -> dict[str, Weight]:
    """Put a prefix before names that lack it: a model may have been saved without its head."""
    if any(name.startswith(prefix) for name in theirs):
        return dict(theirs)
    return {name if name in but else prefix + name: one for name, one in theirs.items()}


def first_of(theirs: Mapping[str, Weight], *names: str) -> Weight:
    """Return the first of several names of one weight that is there."""
    for name in names:
        if name in theirs:
            return theirs[name]
    raise ModelError(f"the weights lack {names[0]!r}")


def scaled(weight: Weight, factor: float) -> Weight:
    """Multiply a weight; by one it stays where it is."""
    if factor == 1:
        return weight
    with np.errstate(over="ignore", invalid="ignore"):  # `Weight.is_finite` tells
        return Weight("float32", weight.as_float32() * np.float32(factor))


def transposed(weight: Weight) -> Weight:
    """Turn a matrix round."""
    if weight.data.ndim != 2:
        raise ModelError(f"a matrix has the shape {list(weight.shape)}")
    return Weight(weight.kind, np.ascontiguousarray(weight.data.T))


def zeros(*shape: int) -> Weight:
    """Return the bias of a product that has none."""
    return Weight("float32", np.zeros(shape, np.float32))
