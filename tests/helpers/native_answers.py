"""A tiny model for the native core with all its parts, and all its outputs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.backends.native_parts import ctc_shape, drafter_shape, model_shape, weights
from outrider.torch.models.folder import parts_of
from tests.helpers import native_tiny

SOURCE = [[3, 4, 5, 1], [6, 1]]
TOKENS = [[1, 7, 2], [5, 3, 8]]


def parts(kind: str, dtype: str) -> dict[str, Any]:
    """Return the arguments of a core with a drafter and a CTC decoder."""
    model = native_tiny.build(kind)
    found = parts_of(model, native_tiny.build_drafter(model), native_tiny.build_ctc(model))
    return {
        "model": model_shape(model.config, dtype),
        "weights": weights(found),
        "drafter": drafter_shape(found.drafter),
        "ctc": ctc_shape(found.ctc.config),
        "instruction_set": "",
        "threads": 1,
    }


def answers(model: Any) -> list[NDArray[Any]]:
    """Return the results of all calls of a model as arrays."""
    state = model.encode(SOURCE, [12, 12], True, True, [])
    logits = model.extend(state, TOKENS, False)
    drafted = model.draft(state, [2, 9], [4, 4], 1.0, [], [])
    return [logits, *map(np.array, drafted), model.ctc(state, None)]


def same(one: list[NDArray[Any]], other: list[NDArray[Any]]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
