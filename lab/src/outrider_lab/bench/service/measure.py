"""Our server beside other translation services with the same weights, under load.

All servers of a model run at once, idle except for the one that is measured. Rounds are
interleaved: in each, every server is measured at every number of clients, in rotated order, so
that other load affects all; a ratio is the median over the rounds. Every answer of our server must
equal the library's text.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from outrider.errors import ModelError, ResourceError
from outrider.runtime import Translator, load
from outrider.serving.registry import Spec, read_spec
from outrider_lab.bench.decode.isa import environment
from outrider_lab.bench.process import run_alone
from outrider_lab.bench.serve.clients import Load, ask_all
from outrider_lab.bench.serve.server import Server, serve_line, serving
from outrider_lab.bench.service.peers import Peers

CLIENTS = (1, 8, 64)
OURS = "outrider"
FEW = 16
"""Lines of the warm-up, and fewest of a measurement."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class _Setting:
    """What is fixed for the rounds of a model and an instruction set."""

    spec: Spec
    lines: Sequence[str]
    expected: Sequence[str]
    """The library's texts."""
    servers: Mapping[str, Server]
    counts: Mapping[str, int]
    """Lines of a measurement, by server."""


def measure_service(
    model: str,
    lines: Sequence[str],
    peers: Peers,
    *,
    isa: str | None = None,
    clients: Sequence[int] = CLIENTS,
    rounds: int = 5,
    seconds: float = 6.0,
    threads: int = 1,
    report: Report = lambda _: None,
) -> list[dict[str, Any]]:
    """Measure a model's servers; return a row for each and each number of clients.

    Args:
        model: As for `outrider serve`, with its languages: `en-de=FOLDER`.
        lines: Texts, one per request.
        peers: Where other services are installed.
        isa: Instruction set of all engines that can be restricted; None for the best.
        clients: Numbers of concurrent clients.
        rounds: Interleaved rounds.
        seconds: About the length of a measurement, which determines its number of lines.
        threads: CPU threads of each engine.
        report: Called with a line on every step.
    """
    spec = read_spec(model)
    if spec.pair is None:
        raise ModelError(f"{model}: bench service needs a language pair; write en-de={model}")
    variables = environment(isa)
    report(f"{spec.name}: the library's texts")
    expected = run_alone(_library_texts, str(spec.folder), list(lines), threads, dict(variables))
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="outrider-service-")))
        commands = {OURS: serve_line(model, "--threads", threads, "--deadline", 600)}
        commands |= dict(peers.lines(spec.folder, "-".join(spec.pair), threads, place))
        servers = {}
        for name, line in commands.items():
            report(f"{spec.name}: starting {name}")
            servers[name] = stack.enter_context(serving(place / name, line, variables))
        counts = {name: _count(server, spec, lines, seconds) for name, server in servers.items()}
        setting = _Setting(spec, lines, expected, servers, counts)
        loads: dict[tuple[str, int], list[Load]] = {}
        memory: dict[str, float | None] = {}
        for number in range(rounds):
            for count in clients:
                names = list(servers)
                first = number % len(names)
                for name in [*names[first:], *names[:first]]:
                    report(f"round {number + 1} of {rounds}: {name}, {count} clients")
                    load = _measure(setting, name, count)
                    loads.setdefault((name, count), []).append(load)
                    memory[name] = servers[name].memory()
    rows = [_row(loads, name, count) for name in servers for count in clients]
    about = {"model": spec.name, "isa": isa}
    return [{**about, **row, "memory_mib": memory[row["server"]]} for row in rows]


def _library_texts(
    folder: str, lines: list[str], threads: int, variables: dict[str, str]
) -> list[str]:
    os.environ.update(variables)
    library = load(folder, backend="native", threads=threads)
    assert isinstance(library, Translator)
    return list(library.translate(lines, split=False))


def _bodies(spec: Spec, lines: Sequence[str]) -> list[dict[str, Any]]:
    assert spec.pair is not None
    source, target = spec.pair
    same = {"source": source, "target": target, "format": "text", "split": False}
    return [{"q": line, **same} for line in lines]


def _count(server: Server, spec: Spec, lines: Sequence[str], seconds: float) -> int:
    """Return the number of lines that a server translates in about this time, after a warm-up."""
    bodies = _bodies(spec, _spread(lines, FEW))
    ask_all(server.url, bodies, clients=FEW)
    speed = ask_all(server.url, bodies, clients=FEW).speed
    return min(len(lines), max(FEW, round(speed * seconds)))


def _measure(setting: _Setting, name: str, clients: int) -> Load:
    """Send this server's lines; our answers must be the library's."""
    pairs = list(zip(setting.lines, setting.expected, strict=True))
    most = max(clients, setting.counts[name])
    if clients == 1:
        most = min(most, 2 * FEW)
    chosen = _spread(pairs, most)
    bodies = _bodies(setting.spec, [line for line, _ in chosen])
    load = ask_all(setting.servers[name].url, bodies, clients=clients)
    load.equal = sum(a == b for a, (_, b) in zip(load.texts, chosen, strict=True))
    if name == OURS and load.equal < len(chosen):
        wrong = len(chosen) - load.equal
        raise ResourceError(f"{wrong} of {len(chosen)} answers differ from the library's")
    return load


def _spread(items: Sequence[Any], most: int) -> Sequence[Any]:
    """Take at most `most` items, evenly spaced."""
    return [items[len(items) * n // most] for n in range(most)] if most < len(items) else items


def _row(loads: Mapping[tuple[str, int], list[Load]], name: str, clients: int) -> dict[str, Any]:
    """Summarise the rounds of a server at a number of clients."""
    own, ours = loads[name, clients], loads[OURS, clients]
    speeds = [load.speed for load in own]
    latencies = [seconds for load in own for seconds in load.latencies]
    cuts = quantiles(latencies, n=100, method="inclusive")
    ratios = [a.speed / b.speed for a, b in zip(ours, own, strict=True)]
    return {
        "server": name,
        "clients": clients,
        "requests": len(latencies),
        "sentences_per_second": round(median(speeds), 2),
        "range": [round(min(speeds), 2), round(max(speeds), 2)],
        "p50_ms": round(1000 * cuts[49], 1),
        "p95_ms": round(1000 * cuts[94], 1),
        "outrider_over_it": round(median(ratios), 2),
        "outrider_over_it_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "equal_to_outrider": round(sum(load.equal for load in own) / len(latencies), 4),
    }
