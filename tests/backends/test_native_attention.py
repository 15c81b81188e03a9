"""Cross-attention weights of the core's decoder against those of PyTorch, row by row."""

import numpy as np
import pytest

from outrider.backends.native import NativeBackend
from outrider.errors import InputError
from outrider.torch.backend import TorchBackend
from outrider.torch.models.folder import parts_of
from tests.helpers import native_tiny

pytest.importorskip("outrider_native", reason="pip install ./native to test the core")

SOURCE = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 3, 4, 5, 6, 7, 8, 9, 1]
TOKENS = [2, 7, 4, 9, 11]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "marian", "learned", "grouped", "wide", "ssru", "bart"])
def test_weights_are_those_of_pytorch(kind: str, threads: int) -> None:
    model = native_tiny.build(kind)
    core = NativeBackend(parts_of(model), dtype="float32", threads=threads)
    (weights,) = core.cross_attention([SOURCE], [TOKENS])
    _, expected = TorchBackend(model).cross_attention([SOURCE * 2, SOURCE], [TOKENS * 2, TOKENS])
    assert weights.shape == expected.shape
    np.testing.assert_allclose(weights, expected, atol=1e-4)
    assert np.ptp(weights) > 0.02, "weights that are all alike show no mistake"


def test_rows_do_not_change_each_other() -> None:
    core = NativeBackend(parts_of(native_tiny.build("marian")), threads=2)
    sources, tokens = [SOURCE, [5, 1], SOURCE[5:]], [[2, 7], [], [2, 7, 4, 9]]
    state = core.encode(sources, capacity=4)
    together = core.core.cross_attention(state.core, tokens)
    assert state.lengths == [2, 0, 4]
    assert together.shape[0] == 6
    assert not together[2:, ..., len(sources[2]) :].any()
    for n, weights in enumerate(core.cross_attention(sources, tokens)):
        (alone,) = core.cross_attention([sources[n]], [tokens[n]])
        np.testing.assert_array_equal(weights, alone)


def test_cross_attention_appends_the_tokens() -> None:
    """Logits after `cross_attention` equal those after `extend`."""
    core = NativeBackend(parts_of(native_tiny.build("marian")))
    state = core.encode([SOURCE], capacity=9)
    core.core.cross_attention(state.core, [TOKENS[:4]])
    logits = core.core.extend(state.core, [TOKENS[4:]], True)
    whole = core.core.extend(core.encode([SOURCE], capacity=9).core, [TOKENS], True)
    np.testing.assert_array_equal(logits, whole)


def test_invalid_calls_are_refused() -> None:
    text = NativeBackend(parts_of(native_tiny.build("text")))
    with pytest.raises(InputError, match="has no source"):
        text.cross_attention([[]], [[2, 3]])
    core = NativeBackend(parts_of(native_tiny.build("plain")))
    with pytest.raises(InputError, match="token 99999"):
        core.cross_attention([SOURCE], [[99999]])
    state = core.encode([SOURCE], capacity=2)
    with pytest.raises(ValueError, match="exceed the capacity"):
        core.core.cross_attention(state.core, [[2, 3, 4]])
    with pytest.raises(ValueError, match="too many tokens"):
        core.core.cross_attention(state.core, [[2] * 3_000_000])
