"""The scaling benchmark: figures follow their definitions, and memory reveals a dense path."""

import json
from dataclasses import replace

import pytest
import torch

from outrider.errors import ConfigError
from outrider.torch.nn.attention import attention_kinds, load_attention
from outrider.torch.nn.attention.causal import Attention as Causal
from outrider_lab.bench.attention.point import PointSetting, measure_memory, measure_point
from outrider_lab.bench.attention.scaling import (
    Sweep,
    check_kinds,
    fit_slope,
    measure_scaling,
    scaling_options,
    summarise,
)
from outrider_lab.bench.process import run_alone
from tests.helpers.peak_memory import measure_quadratic, measure_right, quadratic_bytes

TINY = Sweep(lengths=(64, 128), short=(32,), peer_up_to=64, repeats=1, heads=2, width=8)


def setting(kind: str, length: int, **changes) -> PointSetting:
    causal = load_attention(kind).Attention.causal_ok
    options = scaling_options(kind, length)
    return PointSetting(kind, options, causal, length, repeats=1, **changes)


def test_a_tiny_grid_is_measured_point_by_point() -> None:
    heard: list[str] = []
    result = measure_scaling(["sliding"], TINY, report=heard.append)
    assert list(result["kinds"]) == ["causal", "sliding"]
    assert len(heard) == 6
    assert "peer_training_seconds" not in result["kinds"]["causal"]["points"][0]
    found = result["kinds"]["sliding"]
    assert [point["length"] for point in found["points"]] == [32, 64, 128]
    assert found["points"][0]["forward_seconds"] > 0
    assert "peer_training_seconds" not in found["points"][2]
    assert set(found["short"]) == {"32", "64"}
    # window of 255 tokens + slack of 64, keys and values, 2 heads of 8 float32 numbers
    assert found["cache_bytes_64k"] == (255 + 64) * 2 * 2 * 8 * 4
    assert result["kinds"]["causal"]["cache_bytes_64k"] == 65_536 * 2 * 2 * 8 * 4
    assert found["speedup_16k"] is None
    assert result["machine"]["threads"] == torch.get_num_threads()
    json.dumps(result)


def test_a_point_that_would_take_too_long_is_left_out() -> None:
    heard: list[str] = []
    sweep = replace(TINY, lengths=(64, 1 << 30), short=())
    result = measure_scaling([], sweep, report=heard.append)
    assert [point["length"] for point in result["kinds"]["causal"]["points"]] == [64]
    assert heard[-1] == "causal at 1,073,741,824: left out, it would take too long"


def test_a_failing_point_is_named() -> None:
    bad = replace(TINY, lengths=(64,), short=(), heads=-1)
    with pytest.raises(RuntimeError, match="causal at 64 tokens failed"):
        measure_scaling([], bad)


def point(length: int, seconds: float, *, peer: float, memory: int = 10, dense: bool = False):
    times = {"training_seconds": seconds, "peer_training_seconds": peer}
    return {
        "length": length,
        "dense": dense,
        "training_peak_bytes": memory,
        "forward_seconds": seconds / 3,
        "forward_peak_bytes": memory,
        **times,
    }


def test_figures_follow_their_definitions() -> None:
    points = [
        point(1024, 0.10, peer=0.09, dense=True),
        point(2048, 0.40, peer=0.45, dense=True),
        point(8192, 1.0, peer=8.0),
        point(16384, 2.0, peer=30.0, memory=30),
    ]
    peer = [point(16384, 31.0, peer=30.0, memory=20)]
    found = summarise("sliding", points, peer, Sweep())
    assert found["slope"] == pytest.approx(1.0)
    assert found["speedup_16k"] == 15
    assert found["memory_ratio_16k"] == 1.5
    assert found["sparse_from"] == 8192
    assert found["faster_from"] == 2048
    assert found["short"] == {"1024": pytest.approx(1.111), "2048": pytest.approx(0.889)}


def test_the_slope_of_a_power_is_its_exponent() -> None:
    points = [{"length": n, "x": 3e-9 * n**1.5} for n in (1024, 4096, 65536)]
    assert fit_slope(points, "x") == pytest.approx(1.5)
    assert fit_slope(points[:1], "x") is None


def test_a_stride_follows_the_length() -> None:
    assert scaling_options("sliding", 16384) == {}
    strided = [k for k in attention_kinds() if scaling_options(k, 16384).get("stride")]
    assert all(scaling_options(kind, 16384)["stride"] == 128 for kind in strided)


def test_kinds_are_checked() -> None:
    assert "full" not in check_kinds([])
    assert check_kinds(["full"]) == ["full"]
    with pytest.raises(ConfigError, match=r"--kinds: unknown 'slidin' \(did you mean 'sliding'"):
        check_kinds(["slidin"])


def test_memory_reveals_a_quadratic_path() -> None:
    one = setting("causal", 4096, heads=1, width=16)
    assert min(run_alone(measure_quadratic, one).values()) > 0.9 * quadratic_bytes(one)
    assert max(run_alone(measure_right, one).values()) < quadratic_bytes(one) / 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", attention_kinds())
def test_no_kind_is_quadratic_in_memory(kind: str) -> None:
    one = setting(kind, 8192, width=16)
    assert max(run_alone(measure_right, one).values()) < quadratic_bytes(one) / 4


def test_numbers_that_are_not_finite_are_refused() -> None:
    class Broken(Causal):
        def run(self, q, k, v, keep):
            return v / 0

    one = setting("causal", 64, heads=1, width=8)
    with pytest.raises(FloatingPointError, match="not finite"):
        measure_memory(Broken(one.build().config, causal=True, shape=one.build().shape), one)


def test_a_point_records_whether_it_was_dense() -> None:
    assert measure_point(setting("sliding", 64, heads=2, width=8))["dense"]
    long = replace(setting("sliding", 600, heads=2, width=8), options={"window": 4})
    assert not measure_point(long)["dense"]
