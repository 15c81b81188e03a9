"""The figures of a plan, computed from a config and options."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from outrider.errors import ConfigError, within_memory
from outrider.run_config import RunConfig
from outrider.runtime.provenance import machine
from outrider.torch.plan.machine import Speed, given_speed, measure_decoding, measure_training
from outrider.torch.plan.memory import (
    Weights,
    count_weights,
    least_accumulate,
    state_bytes,
    training_peak,
)
from outrider.torch.plan.probe import Probe, make_batch, probe_step
from outrider.torch.plan.subject import PlanOptions, Subject, find_subject
from outrider.torch.training.precision import choose_precision

How = Literal["counted", "measured", "computed", "given"]


@dataclass(frozen=True)
class Figure:
    """A row of the table; `key` is its name in the JSON output."""

    key: str
    value: float | str
    unit: str
    how: How
    """Counted on the model, measured on this machine, computed from other figures, or given by the
    user.
    """
    note: str = ""
    """Assumptions."""


def show(figure: Figure) -> str:
    """Format the value."""
    value, unit = figure.value, figure.unit
    if isinstance(value, str):
        return value
    if unit == "s":
        return _duration(value)
    if unit in ("B", "FLOP", "FLOP/s"):
        return _scaled(value, unit)
    digits = ",.0f" if value >= 100 or value == int(value) else ",.3g"
    return f"{value:{digits}} {unit}".strip()


def _scaled(value: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T", "P", "E", "Z"):
        if value < 1000 or prefix == "Z":
            return f"{value:,.3g} {prefix}{unit}" if prefix else f"{value:,.0f} {unit}"
        value /= 1000
    raise AssertionError


def _duration(seconds: float) -> str:
    for size, name in ((86400 * 365, "years"), (86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {name}"
    return f"{seconds:.3g} s"


def training(subject: Subject, options: PlanOptions, speed: Speed | None) -> Iterator[Figure]:
    """Yield the time and cost of training."""
    train, devices = subject.config.train, options.devices
    update = subject.rows(devices) * subject.shape.length * devices * train.accumulate
    tokens = options.tokens or train.steps * update
    steps = tokens / update
    source = "--tokens" if options.tokens else "those of train.steps"
    how: How = "given" if options.tokens else "computed"
    yield Figure("training.tokens", tokens, "tokens", how, f"{source}; a row's longer side")
    note = f"of {update:,} tokens: the rows that fit into train.batch_tokens"
    yield Figure("training.steps", steps, "updates", "computed", note)
    if speed is None:
        return
    seconds = tokens * speed.token_seconds / options.devices + steps * speed.update_seconds
    shared = "" if options.devices == 1 else "; without communication of gradients"
    note = f"without evaluations, on {_devices(options)}{shared}"
    yield from _priced("training", seconds, options.devices, options, note)


def distillation(options: PlanOptions, speed: Speed | None) -> Iterator[Figure]:
    """Yield the time and cost of translating a corpus."""
    if options.distill is None or speed is None or speed.sentences_per_second is None:
        return
    seconds = options.distill / speed.sentences_per_second / options.devices
    yield Figure("distillation.sentences", options.distill, "sentences", "given")
    note = f"greedy, the sentences divided among {_devices(options)}"
    yield from _priced("distillation", seconds, options.devices, options, note)


def serving(
    options: PlanOptions, speed: Speed | None, weights: Weights, state_bytes: int
) -> Iterator[Figure]:
    """Yield the devices and cost to serve a rate of sentences."""
    if options.serve is None or speed is None or speed.sentences_per_second is None:
        return
    devices = math.ceil(options.serve / (speed.sentences_per_second * options.busy))
    yield Figure("serving.rate", options.serve, "sentences/s", "given")
    note = f"busy for {options.busy:.0%} of the time (--busy), {options.rows} rows each (--rows)"
    yield Figure("serving.devices", devices, "devices", "computed", note)
    memory = weights.weight_bytes + options.rows * state_bytes
    yield Figure("serving.memory", memory, "B", "computed", "per device: weights and states")
    if options.price is not None:
        cost = devices * options.price
        yield Figure(
            "serving.cost_per_hour", cost, "", "computed", f"{options.price:g} per device-hour"
        )


def _devices(options: PlanOptions) -> str:
    return "1 device" if options.devices == 1 else f"{options.devices} devices"


def _priced(
    name: str, seconds: float, devices: int, options: PlanOptions, note: str
) -> Iterator[Figure]:
    hours = seconds * devices / 3600
    yield Figure(f"{name}.time", seconds, "s", "computed", note)
    yield Figure(f"{name}.device_hours", hours, "hours", "computed", "time x devices")
    if options.price is not None:
        note = f"{options.price:g} per device-hour (--price)"
        yield Figure(f"{name}.cost", hours * options.price, "", "computed", note)


PRECISION_TOKENS = 1024
"""Batch size for choosing `train.precision: auto`."""


def plan_run(config: RunConfig, options: PlanOptions) -> list[Figure]:
    """Return the figures of a run: memory, time and cost."""
    subject = find_subject(config, options)
    if not subject.kind.decodes and (options.distill or options.serve):
        option = "--distill" if options.distill else "--serve"
        fix = "plan its target" if config.model.has_target else "leave it out"
        raise ConfigError(option, f"a {config.model.type} does not decode alone; {fix}")
    with torch.device("meta"):
        weights = count_weights(subject.build())
    fix = "a plan needs memory for the weights; use a larger machine, or fewer layers"
    with within_memory("plan: one small step of the model", fix):
        measured = _measure(subject, options)
    return [
        *_parameters(subject, weights),
        *_memory(subject, options, weights, measured),
        *_flops(subject, measured.probe),
        *_speed(subject, options, measured),
        *training(subject, options, measured.speed),
        *distillation(options, measured.speed),
        *serving(options, measured.speed, weights, measured.state_bytes),
    ]


@dataclass(frozen=True)
class _Measured:
    """Measurements of the real model."""

    probe: Probe
    precision: str
    speed: Speed | None
    state_bytes: int
    """Of a decoded sequence; 0 if the model does not decode."""


def _measure(subject: Subject, options: PlanOptions) -> _Measured:
    train, shape = subject.config.train, subject.shape
    cpu = train.device == "cpu" or not torch.accelerator.is_available()
    device = torch.device("cpu") if cpu else torch.accelerator.current_accelerator()
    assert device is not None
    model = subject.build().to(device)
    precision: str = train.precision
    if precision == "auto":
        precision = "float32"
        if options.measure:
            rows = max(1, min(subject.rows(options.devices), PRECISION_TOKENS // shape.length))
            batch = make_batch(shape, rows, device)
            precision = choose_precision(model, subject.objective, batch).precision
    probe = probe_step(model, subject.objective, shape, precision)
    state = state_bytes(model.eval(), shape) if subject.kind.decodes else 0
    speed = None
    if options.given is not None:
        speed = given_speed(options.given, probe, shape, decodes=subject.kind.decodes)
    elif options.measure:
        speed = _time(subject, options, model, precision)
    return _Measured(probe, precision, speed, state)


def _time(subject: Subject, options: PlanOptions, model: Any, precision: str) -> Speed:
    rows = subject.rows(options.devices)
    train = subject.config.train.model_copy(update={"precision": precision})
    token, update = measure_training(model, subject.objective, subject.shape, train, rows=rows)
    rate = None
    if subject.kind.decodes:
        rate = measure_decoding(model, subject.shape, rows=options.rows)
    return Speed(token, update, rate)


def _parameters(subject: Subject, weights: Weights) -> Iterator[Figure]:
    note = (
        f"vocabulary of {subject.shape.vocab_size:,}, {subject.vocabulary}; shared ones count once"
    )
    yield Figure("parameters.total", weights.total, "", "counted", note)
    for name, count in weights.parameters.items():
        yield Figure(f"parameters.{name}", count, "", "counted")
    if weights.beside:
        yield Figure("parameters.beside", weights.beside, "", "counted", "the target, frozen")


def _memory(
    subject: Subject, options: PlanOptions, weights: Weights, measured: _Measured
) -> Iterator[Figure]:
    train, probe = subject.config.train, measured.probe
    rows, ddp = subject.rows(options.devices), options.devices > 1
    yield Figure("memory.weights", weights.weight_bytes, "B", "counted", "float32, with buffers")
    yield Figure("memory.gradients", weights.gradient_bytes, "B", "counted", "float32")
    note = "AdamW: two moments per weight"
    yield Figure("memory.optimiser", weights.optimiser_bytes, "B", "counted", note)
    shares = _shares(subject, options)
    if shares > 1:
        note = "weights outside layers, two layers and the gradients of one (FSDP2)"
        yield Figure("memory.gathered", weights.gathered_bytes, "B", "computed", note)
    elif ddp:
        note = "DDP's copies of the gradients"
        yield Figure("memory.buckets", weights.gradient_bytes, "B", "computed", note)
    note = (
        f"{measured.precision}, {rows:,} rows of {subject.shape.length} tokens in one pass; "
        f"length: {subject.lengths}"
    )
    yield Figure("memory.activations", int(probe.kept(rows)), "B", "counted", note)
    for name, line in probe.activations.items():
        yield Figure(f"memory.activations.{name}", max(0, int(line.at(rows))), "B", "counted")
    note = "peak of activations and temporary tensors"
    yield Figure("memory.step", int(probe.peak(rows)), "B", "counted", note)
    peak = training_peak(weights, probe, rows, accumulate=train.accumulate, ddp=ddp, shares=shares)
    when = "replace activations" if train.accumulate == 1 else "are kept"
    contents = f"weights, optimiser, step; gradients {when}"
    if shares > 1:
        contents = f"1/{shares} of weights, gradients and optimiser, gathered weights, step"
    note = f"per device: {contents}; without fragmentation"
    yield Figure("memory.training", peak, "B", "computed", note)
    yield from _fit(subject, options, weights, measured, peak)
    if measured.state_bytes:
        note = f"per sequence of {subject.shape.length} tokens, float32: caches and source"
        yield Figure("memory.decoding_state", measured.state_bytes, "B", "counted", note)


def _fit(
    subject: Subject, options: PlanOptions, weights: Weights, measured: _Measured, peak: int
) -> Iterator[Figure]:
    """Report whether training fits a device, and otherwise the accumulation that makes it fit."""
    how: How = "measured" if options.device_memory is None else "given"
    note = "of this machine" if options.device_memory is None else "--device-memory"
    memory = (options.device_memory or 0) * 1e9 or (machine()["memory_gib"] or 0) * 2**30
    if not memory:
        message = "is required on this system, such as --device-memory 16"
        raise ConfigError("--device-memory", message)
    yield Figure("memory.device", memory, "B", how, note)
    if peak <= memory:
        yield Figure("memory.fits", "yes", "", "computed", f"{peak / memory:.0%} of a device")
        return
    rows, ddp = partial(subject.rows, options.devices), options.devices > 1
    shares = _shares(subject, options)
    fewest = least_accumulate(weights, measured.probe, rows, memory, ddp=ddp, shares=shares)
    fix = "no accumulation makes it fit" if fewest is None else f"train.accumulate={fewest} does"
    yield Figure("memory.fits", "no", "", "computed", f"{peak / memory:.0%} of a device; {fix}")


def _shares(subject: Subject, options: PlanOptions) -> int:
    """Return the number of devices the weights are divided among."""
    return options.devices if subject.config.train.shard else 1


def _flops(subject: Subject, probe: Probe) -> Iterator[Figure]:
    length = subject.shape.length
    note = "of matrix products and attention; both sides of a pair"
    forward, training = probe.forward_flops / length, probe.training_flops / length
    yield Figure("flops.forward", forward, "FLOP", "counted", f"per token, {note}")
    note = f"{training / forward:.2f} x forward: backward and recomputation"
    yield Figure("flops.training", training, "FLOP", "counted", f"per token, {note}")


def _speed(subject: Subject, options: PlanOptions, measured: _Measured) -> Iterator[Figure]:
    speed, given = measured.speed, options.given
    if speed is None:
        return
    if given is not None:
        yield Figure("speed.flops", given.flops, "FLOP/s", "given", "peak of a device (--flops)")
        train = f"{given.utilisation:.0%} of --flops (--utilisation)"
        decode = f"{given.decode_utilisation:.0%} of --flops (--decode-utilisation)"
    else:
        train = f"{measured.precision}, a few steps of this model on this machine"
        decode = f"PyTorch, float32, greedy, {options.rows} rows (--rows), no drafter"
        reached = measured.probe.training_flops / (speed.token_seconds * subject.shape.length)
        yield Figure("speed.flops", reached, "FLOP/s", "measured", "reached by training")
    how: How = "computed" if given is not None else "measured"
    yield Figure("speed.training", 1 / speed.token_seconds, "tokens/s", how, train)
    if given is None:
        yield Figure("speed.update", speed.update_seconds, "s", how, "clipping and AdamW")
    if speed.sentences_per_second is not None:
        yield Figure("speed.decoding", speed.sentences_per_second, "sentences/s", how, decode)
