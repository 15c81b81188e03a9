"""Heads of one layer with different attention kinds."""

import pickle

import pytest
import torch

from outrider.errors import ConfigError
from outrider.torch.nn.attention import HeadShape, build_attention
from outrider.torch.nn.attention.mixed import Config
from outrider.torch.nn.cache import SLACK, CacheSpec
from tests.helpers.attention_equation import equation, heads

PARTS = [{"heads": 2, "kind": "sliding", "window": 3}, {"heads": 1, "kind": "causal"}]


def build(parts: object, *, heads: int = 3, kv_heads: int = 3, causal: bool = True):
    shape = HeadShape(heads, kv_heads, 4)
    return build_attention({"kind": "mixed", "parts": parts}, causal=causal, shape=shape)


def test_every_head_equals_its_equation() -> None:
    q, k, v = (x.detach() for x in heads(1, 3, 20, 4))
    out = build(PARTS)(q, k, v)
    for head in range(3):
        window = 3 if head < 2 else 20
        want = equation(q[0, head], k[0, head], v[0, head], lambda i, j, w=window: 0 <= i - j < w)
        torch.testing.assert_close(out[0, head], want)


def test_one_part_may_take_the_remaining_heads() -> None:
    parts = [{"heads": 2, "kind": "full"}, {"kind": "sliding", "window": 2}]
    attention = build(parts, heads=6, kv_heads=3, causal=False)
    assert [part.shape for part in attention.parts.parts] == [(2, 1, 4), (4, 2, 4)]


def test_the_cache_of_a_window_stays_small() -> None:
    attention = build(PARTS)
    room = CacheSpec(1, 10_000, 3, 4, torch.float32, torch.device("cpu"))
    assert attention.new_cache(room).nbytes == (2 * (2 + SLACK) + 10_000) * 4 * 2 * 4
    assert attention.new_cache(room).wraps


def test_penalties_of_parts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = build(PARTS)
    assert attention.penalty() is None
    for part, value in zip(attention.parts.parts, (1.5, 2.0), strict=True):
        monkeypatch.setattr(part, "penalty", lambda value=value: torch.tensor(value))
    assert attention.penalty() == 3.5


def test_config_compares_by_value() -> None:
    one = Config(parts=[{"kind": "causal", "heads": 2}, {"kind": "x", "sides": [1, 2]}])
    two = Config(parts=[{"heads": 2, "kind": "causal"}, {"sides": [1, 2], "kind": "x"}])
    assert one == two
    assert hash(one) == hash(two)
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], r"attention\.parts: expected a list"),
        (None, r"attention\.parts: expected a list"),
        ([3], r"attention\.parts\[0\]\.kind: is missing"),
        ([PARTS[0], {"heads": 1, "kind": "slidng"}], r"parts\[1\]\.kind: unknown 'slidng' \(did"),
        ([PARTS[1], {"heads": 2, "kind": "causal", "w": 1}], r"parts\[1\]\.w: unknown option"),
        ([PARTS[1], {"heads": 2, "kind": "sliding", "window": 0}], r"parts\[1\]\.window: got 0"),
        ([{"heads": 3, "kind": "full"}], r"parts\[0\]\.kind: 'full' cannot be used in a decoder"),
        ([{"heads": 3, "kind": "mixed"}], r"parts\[0\]\.kind: 'mixed' cannot hold 'mixed'"),
        ([{"heads": 0, "kind": "causal"}], r"parts\[0\]\.heads: got 0, expected 1 or more"),
        ([{"heads": 2, "kind": "causal"}], r"parts: have 2 heads in total, the layer has 3"),
        ([*PARTS, {"kind": "causal"}], r"parts: have 3 heads in total, the layer has 3"),
        ([{"kind": "causal"}] * 2, r"parts: only one part may omit `heads`"),
        ([{"heads": 3, "kind": "causal", "head_gate": "glu"}], r"parts\[0\]\.head_gate: belongs"),
    ],
)
def test_errors_name_the_part(parts: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(parts)


def test_heads_that_share_keys_stay_together() -> None:
    with pytest.raises(ConfigError, match=r"parts\[0\]\.heads: got 1; use a multiple of 2"):
        build([{"heads": 1, "kind": "causal"}, {"heads": 3, "kind": "causal"}], heads=4, kv_heads=2)
