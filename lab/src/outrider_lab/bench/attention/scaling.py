"""Scaling of time and memory of every attention with the length, relative to full causal attention.

    slope            of log(time) over log(n), where the sparse path runs
    speedup_16k      time of the peer / time of the kind, forward and backward, at 16k tokens
    memory_ratio_16k peak memory of the kind / peak memory of the peer, the same
    cache_bytes_64k  cache of one layer to decode 65,536 tokens of one row

Every point (a kind at a length) is measured in its own process, alternating with the peer, so that
other load affects both. Points that would take too long are left out, not extrapolated.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from outrider.errors import ConfigError, ResourceError, nearest
from outrider.runtime.provenance import machine, versions
from outrider.torch.nn.attention import HeadShape, attention_kinds, build_attention, load_attention
from outrider.torch.nn.cache import CacheSpec
from outrider_lab.bench.attention.point import PEER, PointSetting, measure_point
from outrider_lab.bench.process import JobEndedError, JobError, run_alone

QUOTED, CACHED = 1 << 14, 1 << 16
"""Lengths for the reported speed and memory, and for the KV cache."""


@dataclass(frozen=True)
class Sweep:
    """Lengths to measure, and how often."""

    lengths: tuple[int, ...] = tuple(1 << power for power in range(10, 17))
    short: tuple[int, ...] = (256, 512)
    """Short lengths, at which a kind must not be slower than its peer."""
    peer_up_to: int = QUOTED
    """Maximum length of the peer."""
    repeats: int = 5
    seconds: float = 45.0
    """Time limit of one point, after at least one repeat."""
    longest: float = 90.0
    """Maximum expected seconds of a pass."""
    heads: int = 4
    width: int = 64

    @classmethod
    def quick(cls) -> "Sweep":
        """Fewer points: a minute for two kinds."""
        return cls(lengths=(1024, 4096, QUOTED), short=(512,), repeats=3, seconds=8.0)


Report = Callable[[str], None]


def measure_scaling(
    kinds: Sequence[str],
    sweep: Sweep,
    *,
    threads: int | None = None,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Measure and summarise every kind at every length.

    Args:
        kinds: Names of attentions, besides the peer.
        sweep: Lengths and repeats.
        threads: CPU threads; by default PyTorch's choice.
        report: Called with a line on every point.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    points = {
        kind: _measure_kind(kind, sweep, threads, report) for kind in dict.fromkeys([PEER, *kinds])
    }
    return {
        "task": "attention",
        "peer": PEER,
        "kinds": {kind: summarise(kind, points[kind], points[PEER], sweep) for kind in points},
        "setting": {"batch": 1, "heads": sweep.heads, "width": sweep.width, "dtype": "float32"},
        "machine": machine(),
        "versions": versions(),
    }


def keep_others(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Add the kinds of an earlier result that were not measured again.

    Every point was timed alternately with its peer, so kinds of two runs are comparable on the same
    machine; `earlier` lists those of the earlier run.
    """
    for key in ("setting", "machine"):
        if before.get(key) != now[key]:
            raise ConfigError("--keep", f"the file was measured with another {key}; leave it out")
    kept = {kind: v for kind, v in before["kinds"].items() if kind not in now["kinds"]}
    then = {"commit": before["versions"].get("commit"), "date": before.get("date")}
    earlier = {kind: before.get("earlier", {}).get(kind, then) for kind in kept}
    kinds = {**now["kinds"], **kept}
    order = [PEER, *sorted(kinds.keys() - {PEER})]
    return {**now, "kinds": {kind: kinds[kind] for kind in order}, "earlier": earlier}


def check_kinds(names: Sequence[str]) -> list[str]:
    """Return the named kinds; by default all that support decoders."""
    known = attention_kinds()
    for name in names:
        if name not in known:
            hint = nearest(name, known)
            raise ConfigError("--kinds", f"unknown {name!r}{hint}; expected some of {known}")
    return list(names) or [k for k in known if load_attention(k).Attention.causal_ok]


def scaling_options(kind: str, length: int) -> dict[str, Any]:
    """Return the options of a kind in this benchmark."""
    options: dict[str, Any] = load_attention(kind).Config.options_for(length)
    return options


def summarise(
    kind: str,
    points: Sequence[dict[str, Any]],
    peer: Sequence[dict[str, Any]],
    sweep: Sweep,
) -> dict[str, Any]:
    """Return the figures of one kind; None for lengths that were not measured."""
    long = [point for point in points if point["length"] not in sweep.short]
    # Kinds that are always dense have a slope too.
    fast = [point for point in long if not point["dense"]] or long
    at, peer_at = _at(points, QUOTED), _at(peer, QUOTED)
    return {
        "slope": fit_slope(fast, "training_seconds"),
        "slope_forward": fit_slope(fast, "forward_seconds"),
        "slope_memory": fit_slope(fast, "training_peak_bytes"),
        "speedup_16k": _ratio(at, "peer_training_seconds", at, "training_seconds"),
        "speedup_forward_16k": _ratio(at, "peer_forward_seconds", at, "forward_seconds"),
        "memory_ratio_16k": _ratio(at, "training_peak_bytes", peer_at, "training_peak_bytes"),
        "memory_ratio_forward_16k": _ratio(at, "forward_peak_bytes", peer_at, "forward_peak_bytes"),
        "cache_bytes_64k": _cache_bytes(kind, sweep),
        "sparse_from": min((p["length"] for p in points if not p["dense"]), default=None),
        "faster_from": _faster_from(points),
        "short": {
            str(point["length"]): _ratio(point, "training_seconds", point, "peer_training_seconds")
            for point in points
            if point["length"] <= 2048 and "peer_training_seconds" in point
        },
        "points": list(points),
    }


def fit_slope(points: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Fit log(value) = a + slope log(n) by least squares; None for fewer than two points."""
    pairs = [(math.log(p["length"]), math.log(p[name])) for p in points if p[name] > 0]
    if len({x for x, _ in pairs}) < 2:
        return None
    mean_x, mean_y = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    above = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return round(above / sum((x - mean_x) ** 2 for x, _ in pairs), 3)


def _measure_kind(
    kind: str, sweep: Sweep, threads: int | None, report: Report
) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = []
    causal = load_attention(kind).Attention.causal_ok
    for length in sorted({*sweep.short, *sweep.lengths}):
        if points and _forecast(points[-1], length) > sweep.longest:
            report(f"{kind} at {length:,}: left out, it would take too long")
            break
        setting = PointSetting(
            kind=kind,
            options=scaling_options(kind, length),
            causal=causal,
            length=length,
            heads=sweep.heads,
            width=sweep.width,
            peer=kind != PEER and length <= sweep.peer_up_to,
            repeats=sweep.repeats,
            seconds=sweep.seconds,
            threads=threads,
        )
        points.append(_measure_in_process(setting))
        report(_describe(kind, points[-1]))
    return points


def _forecast(last: Mapping[str, Any], length: int) -> float:
    """Estimate the seconds of a pass at the next length; dense time is quadratic."""
    power = 2.0 if last["dense"] else 1.5
    return float(last["training_seconds"]) * float(length / last["length"]) ** power


def _measure_in_process(setting: PointSetting) -> dict[str, Any]:
    """Measure one point in its own process."""
    point = f"{setting.kind} at {setting.length} tokens"
    try:
        return run_alone(measure_point, setting, preload=[measure_point.__module__])
    except JobEndedError as error:
        message = f"{point}: {error}; it may have run out of memory, try --quick"
        raise ResourceError(message) from error
    except JobError as error:
        raise RuntimeError(f"{point} failed: {error}\n{error.trace}") from error


def _at(points: Sequence[Mapping[str, Any]], length: int) -> Mapping[str, Any]:
    return next((point for point in points if point["length"] == length), {})


def _ratio(
    above: Mapping[str, Any], name: str, below: Mapping[str, Any], other: str
) -> float | None:
    if not above.get(name) or not below.get(other):
        return None
    return round(above[name] / below[other], 3)


def _faster_from(points: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the length from which the kind is faster than its peer at all measured lengths."""
    first = None
    for point in points:
        if "peer_training_seconds" not in point:
            break
        faster = point["training_seconds"] < point["peer_training_seconds"]
        first = (first or point["length"]) if faster else None
    return first


def _cache_bytes(kind: str, sweep: Sweep) -> int | None:
    variant = load_attention(kind).Attention
    if not variant.causal_ok:
        return None
    shape = HeadShape(sweep.heads, sweep.heads, sweep.width)
    spec = {"kind": kind, **scaling_options(kind, CACHED)}
    attention = build_attention(spec, causal=True, shape=shape)
    cache = CacheSpec(1, CACHED, sweep.heads, sweep.width, torch.float32, torch.device("cpu"))
    return attention.new_cache(cache).nbytes


def _describe(kind: str, point: Mapping[str, Any]) -> str:
    parts = [f"{kind} at {point['length']:,}:", f"{1000 * point['training_seconds']:,.0f} ms"]
    if speedup := _ratio(point, "peer_training_seconds", point, "training_seconds"):
        parts.append(f"({speedup:.2f}x)")
    parts.append(f"{point['training_peak_bytes'] / 2**20:,.0f} MiB")
    return " ".join([*parts, "dense" if point["dense"] else "sparse"])
