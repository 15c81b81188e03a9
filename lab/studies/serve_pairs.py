"""What pairs of `outrider serve` cost: time to start, memory, and waiting during a load.

    python lab/studies/serve_pairs.py en-pt=ENPT zh-en=demo/zh-en --source "CORPORA/devtest.{}.gz"

Start: servers with one pair and with many (copies of the first model), none of them loaded, take
turns; seconds from the start of the process to the first answer of /health and of /ready, and CPU
seconds until then.

Memory: a new server loads two copies of a model, one after the other, and translates a sentence
after each. The first copy also loads code that all models use, so a pair takes what the second one
adds. Private memory is `RssAnon`, mapped memory is `RssFile` of `/proc/PID/status`, which counts
pages that both copies map twice. Then requests with 1 and with 64 texts are decoded; a row takes
(peak of 64 - peak of 1) / 63.

Load: a client sends one sentence after the other to the first pair while each of the other models
is loaded, used once and unloaded, again and again; latencies of requests during a load, and of
those that no load overlaps.
"""

import argparse
import contextlib
import http.client
import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any
from urllib.parse import urlsplit

from outrider.data.lines import text_lines
from outrider.runtime.provenance import machine, versions, write_result
from outrider.serving.registry import read_spec
from outrider_lab.bench.serve.clients import ask_all
from outrider_lab.bench.serve.server import Server, serve_line, serving

ROWS = 64
CODES = ["bg", "cs", "da", "el", "es", "et", "fi", "fr", "hr", "hu", "it", "lt", "lv", "nl", "pl"]
CODES += ["ro", "sk", "sl", "sv", "uk"]
"""Languages of the copies: en-bg, en-cs, ..."""
PROBES = ("health", "ready")


def main() -> None:
    """Measure all three, and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", help="As for outrider serve: en-de=FOLDER.")
    parser.add_argument("--source", required=True, help="Lines to translate; {} is the language.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--loads", type=int, default=20, help="Loads of each model.")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    specs = [read_spec(model) for model in given.models]
    assert all(spec.pair for spec in specs)
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        start = measure_start(specs[0].folder, given.rounds, work)
        memory = [
            measure_memory(model, lines_of(model, given.source), given.rounds, work)
            for model in given.models
        ]
        loads = measure_loads(given.models, given.source, given.loads, work)
    told: dict[str, Any] = {
        "task": "pairs of a server",
        "start": start,
        "memory": memory,
        "loads": loads,
    }
    told["load_average"] = {"before": before, "after": os.getloadavg()}
    print(told)
    if given.json is not None:
        write_result(given.json, {**told, "machine": machine(), "versions": versions()})


def lines_of(model: str, source: str) -> list[dict[str, Any]]:
    """Return requests of one line each."""
    pair = read_spec(model).pair
    assert pair is not None
    same = {"source": pair[0], "target": pair[1]}
    texts = text_lines(Path(source.format(pair[0])))
    return [{"q": text, **same} for text in texts if text.strip()]


def measure_start(folder: Path, rounds: int, work: Path) -> dict[str, Any]:
    """Start servers with one and with many pairs in turns."""
    models = []
    for code in CODES:
        copy = work / f"copy-{code}"
        shutil.copytree(folder, copy)
        models.append(f"en-{code}={copy}")
    seen: dict[int, list[dict[str, float]]] = {1: [], len(models): []}
    for turn in range(rounds + 1):
        for count in seen if turn % 2 else reversed(seen):
            found = first_answers(models[:count])
            if turn:  # the first turn loads files into the page cache
                seen[count].append(found)
    result: dict[str, Any] = {"pairs": len(models), "rounds": rounds}
    one, many = seen.values()
    for probe in (*PROBES, "cpu"):
        differences = [b[probe] - a[probe] for a, b in zip(one, many, strict=True)]
        result[probe] = {
            "one": median(found[probe] for found in one),
            "many": median(found[probe] for found in many),
            "difference": median(differences),
            "differences": differences,
        }
    return result


def first_answers(models: Sequence[str]) -> dict[str, float]:
    """Start a server; return the seconds to the first answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = serve_line(models[0], *models[1:], "--lazy", "--threads", 1, "--port", port)
    began = time.perf_counter()
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        found = {probe: wait_for(port, f"/{probe}", process) - began for probe in PROBES}
        stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8")
        ticks = stat.rpartition(")")[2].split()[11:13]
        return {**found, "cpu": sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")}
    finally:
        process.terminate()
        process.wait()


def wait_for(port: int, path: str, process: "subprocess.Popen[bytes]") -> float:
    """Ask until the answer is 200; return the time."""
    while process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.suppress(OSError):
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return time.perf_counter()
        connection.close()
        time.sleep(0.005)
    sys.exit("the server did not start")


def measure_memory(
    model: str, bodies: list[dict[str, Any]], rounds: int, work: Path
) -> dict[str, Any]:
    """Measure the memory of a pair and of a row in new servers."""
    spec = read_spec(model)
    second = work / f"second-{spec.name}"
    shutil.copytree(spec.folder, second)
    source = bodies[0]["source"]
    copy, other = f"{source}-fr={second}", bodies[0] | {"target": "fr"}
    texts = [body["q"] for body in bodies[:ROWS]]
    pair: list[dict[str, float]] = []
    rows: list[float] = []
    options = (copy, "--lazy", "--threads", 1, "--rows", ROWS)
    for _ in range(rounds):
        with serving(work / "log", serve_line(model, *options)) as server:
            ask_all(server.url, [bodies[0]], clients=1)
            before = resident(server)
            ask_all(server.url, [other], clients=1)
            after = resident(server)
            pair.append({kind: after[kind] - before[kind] for kind in after})
            peaks = {}
            for count in (1, ROWS):
                with peak(server) as highest:
                    ask_all(server.url, [bodies[0] | {"q": texts[:count]}] * 3, clients=1)
                peaks[count] = highest()
            rows.append((peaks[ROWS] - peaks[1]) / (ROWS - 1))
    return {
        "model": spec.name,
        "rounds": rounds,
        "weights_mb": spec.weights / 1e6,
        "private_mb": median(found["RssAnon"] for found in pair),
        "mapped_mb": median(found["RssFile"] for found in pair),
        "row_mb": median(rows),
        "rows_mb": rows,
        "characters_per_row": mean(map(len, texts)),
    }


def resident(server: Server) -> dict[str, float]:
    """Return private and mapped MB."""
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
    return {
        kind: int(kb) * 1024 / 1e6
        for kind, kb in re.findall(r"(Rss(?:Anon|File)):\s+(\d+)", status)
    }


@contextmanager
def peak(server: Server) -> Iterator[Callable[[], float]]:
    """Sample private memory in this context."""
    samples, done = [resident(server)["RssAnon"]], threading.Event()

    def sample() -> None:
        while not done.wait(0.002):
            samples.append(resident(server)["RssAnon"])

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield lambda: max(samples)
    finally:
        done.set()
        thread.join()


def measure_loads(models: Sequence[str], source: str, loads: int, work: Path) -> dict[str, Any]:
    """Load models beside the requests of the first one."""
    probes = lines_of(models[0], source)
    idle = 0.2
    result: dict[str, Any] = {"asked": read_spec(models[0]).name, "idle_seconds": idle}
    for model in models[1:]:
        options = (model, "--lazy", "--threads", 1, "--idle", idle)
        with serving(work / "log", serve_line(models[0], *options)) as server:
            body = lines_of(model, source)[0] | {"q": "a"}
            times, spans = ask_beside(server.url, probes, body, loads)
            seconds = figure(server.url, "load_seconds_total", read_spec(model).name)
            count = figure(server.url, "loads_total", read_spec(model).name)
        during: list[float] = []
        without: list[float] = []
        for began, ended in times:
            overlaps = any(began < end and ended > start for start, end in spans)
            (during if overlaps else without).append(ended - began)
        result[read_spec(model).name] = {
            "loads": int(count),
            "load_seconds": seconds / count,
            "during": percentiles(during),
            "without": percentiles(without),
        }
    return result


def ask_beside(
    url: str, probes: list[dict[str, Any]], body: dict[str, Any], loads: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return start and end of each request of the first model and of each load."""
    times: list[tuple[float, float]] = []
    spans: list[tuple[float, float]] = []
    done = threading.Event()

    def ask() -> None:
        running = itertools.takewhile(lambda _: not done.is_set(), itertools.cycle(probes))
        times.extend(timed(url, probe) for probe in running)

    client = threading.Thread(target=ask)
    client.start()
    time.sleep(1)
    for _ in range(loads):
        spans.append(timed(url, body))
        time.sleep(1)
    done.set()
    client.join()
    return times[20:], spans  # the first ones load the model


def timed(url: str, body: dict[str, Any]) -> tuple[float, float]:
    """Send a request; return when it began and ended."""
    began = time.perf_counter()
    ask_all(url, [body], clients=1)
    return began, time.perf_counter()


def figure(url: str, name: str, model: str) -> float:
    """Return a figure of /metrics."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    (value,) = re.findall(rf'^outrider_model_{name}{{model="{model}"}} (\S+)$', text, re.MULTILINE)
    return float(value)


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return the number of requests, and p50 and p95 in milliseconds."""
    cuts = quantiles(seconds, n=20)
    return {"requests": len(seconds), "p50_ms": 1e3 * cuts[9], "p95_ms": 1e3 * cuts[18]}


if __name__ == "__main__":
    main()
