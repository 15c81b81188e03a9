"""Figures of a plan, and those for the time and cost of training, distillation and serving."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from outrider.torch.plan.machine import Speed
from outrider.torch.plan.memory import Weights
from outrider.torch.plan.subject import PlanOptions, Subject

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
