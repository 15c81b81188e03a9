"""A server under load, relative to the library alone and to CTranslate2 behind FastAPI.

All decode the same lines with the same weights in int8 on the same number of threads. They take
turns, so that other load affects all; a ratio is the median over the turns. Every answer of our
server must equal the library's text.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from outrider.errors import ModelError, ResourceError
from outrider.runtime import Translator, load
from outrider.serving.registry import Spec, read_spec
from outrider_lab.bench.serve.clients import Load, ask_all, first_tokens
from outrider_lab.bench.serve.server import Server, serve_line, serving

CLIENTS = (1, 16, 64, 256)
MATCHED = 64
"""Clients, and batch size of the library, at which servers are compared."""
FEW, SOME = 32, 64
"""Lines for a single client, and for LibreTranslate, which are slow."""
EXPORT = (
    "import sys; from outrider.torch.export import export_ctranslate2;"
    "export_ctranslate2(sys.argv[1], sys.argv[2], quantization='int8')"
)

Report = Callable[[str], None]


def measure_serve(
    model: str,
    lines: Sequence[str],
    *,
    clients: Sequence[int] = CLIENTS,
    repeats: int = 5,
    threads: int = 1,
    libretranslate: str | None = None,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Measure a translation model.

    Args:
        model: As for `outrider serve`: `FOLDER` or `en-de=FOLDER`.
        lines: Texts, one per request.
        clients: Numbers of concurrent clients.
        repeats: Turns of the comparison at 64 clients.
        threads: CPU threads of each engine.
        libretranslate: Address of a running LibreTranslate with the same languages.
        report: Called with a line on every step.
    """
    spec = read_spec(model)
    if spec.pair is None:
        raise ModelError(f"{model}: bench serve needs a language pair; write en-de={model}")
    library = load(spec.folder, backend="native", threads=threads)
    assert isinstance(library, Translator)
    options: dict[str, Any] = {}
    if library.backend.drafts is not None:
        options["mode"] = "tandem"
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="outrider-serve-")))
        report("exporting the model for CTranslate2")
        subprocess.run(  # noqa: S603
            [sys.executable, "-c", EXPORT, str(spec.folder), str(place / "peer")], check=True
        )
        ours = serve_line(model, "--threads", threads, "--deadline", 600)
        servers = {
            "outrider": stack.enter_context(serving(place / "ours", ours)),
            "ctranslate2": stack.enter_context(serving(place / "theirs", _peer(place, threads))),
        }
        if libretranslate is not None:
            servers["libretranslate"] = Server(libretranslate, None)
        expected = library.translate(list(lines), split=False, **options)
        turns = _turns(library, servers, spec, lines, expected, options, repeats, report)
        rows = _rows(servers, spec, lines, expected, clients, report)
    speeds = {name: [turn[name] for turn in turns] for name in turns[0]}
    served = speeds["outrider"]
    ratios: dict[str, float | None] = {
        f"ratio_to_{key}": median(a / b for a, b in zip(served, speeds[name], strict=True))
        for key, name in (("offline", "offline"), ("ctranslate2_server", "ctranslate2"))
    }
    peers = speeds.get("libretranslate")
    ratios["ratio_to_libretranslate"] = (
        None if peers is None else median(a / b for a, b in zip(served, peers, strict=True))
    )
    return {
        "task": "serve",
        **ratios,
        "clients": MATCHED,
        "lines": len(lines),
        "repeats": repeats,
        "engine_threads": threads,
        "mode": options.get("mode", "ar"),
        "sentences_per_second": {name: median(values) for name, values in speeds.items()},
        "turns": turns,
        "rows": rows,
    }


def _peer(place: Path, threads: int) -> list[str]:
    script = Path(__file__).with_name("peer.py")
    return [sys.executable, str(script), str(place / "peer"), str(threads)]


def _bodies(spec: Spec, lines: Sequence[str]) -> list[dict[str, Any]]:
    assert spec.pair is not None
    source, target = spec.pair
    same = {"source": source, "target": target, "format": "text", "split": False}
    return [{"q": line, **same} for line in lines]


def _turns(
    library: Translator,
    servers: dict[str, Server],
    spec: Spec,
    lines: Sequence[str],
    expected: Sequence[str],
    options: dict[str, Any],
    repeats: int,
    report: Report,
) -> list[dict[str, float]]:
    """Return the sentences per second of library and servers in each turn, after a warm-up."""
    turns = []
    bodies = _bodies(spec, lines)
    for turn in range(repeats + 1):
        speeds: dict[str, float] = {}
        report(f"turn {turn} of {repeats}: the library alone")
        start_time = perf_counter()
        for start in range(0, len(lines), MATCHED):
            library.translate(list(lines[start : start + MATCHED]), split=False, **options)
        speeds["offline"] = len(lines) / (perf_counter() - start_time)
        for name, server in servers.items():
            report(f"turn {turn} of {repeats}: {name}, {MATCHED} clients")
            requests = _spread(bodies, SOME) if name == "libretranslate" else bodies
            load = ask_all(server.url, requests, clients=MATCHED)
            _check(name, load, expected)
            speeds[name] = load.speed
        turns += [speeds] * bool(turn)
    return turns


def _rows(
    servers: dict[str, Server],
    spec: Spec,
    lines: Sequence[str],
    expected: Sequence[str],
    clients: Sequence[int],
    report: Report,
) -> list[dict[str, Any]]:
    """Return speed, latencies and memory for each number of clients."""
    rows = []
    for count in clients:
        for name, server in servers.items():
            few = lines[:FEW] if count == 1 else lines
            if name == "libretranslate":
                few = _spread(few, SOME)
            report(f"{name}: {count} clients")
            load = ask_all(server.url, _bodies(spec, few), clients=count)
            _check(name, load, expected[: len(few)])
            cuts = quantiles(load.latencies, n=100, method="inclusive")
            row = {
                "server": name,
                "clients": count,
                "requests": len(load.latencies),
                "sentences_per_second": round(load.speed, 2),
                **{f"p{cut}_ms": round(1000 * cuts[cut - 1], 1) for cut in (50, 95, 99)},
                "memory_mib": server.memory(),
            }
            if name == "outrider":
                bodies = [{"model": spec.name, "prompt": line, "stream": True} for line in few]
                latencies = first_tokens(server.url, bodies, clients=count)
                row["first_token_ms"] = round(1000 * median(latencies), 1)
            rows.append(row)
    return rows


def _spread(items: Sequence[Any], most: int) -> Sequence[Any]:
    """Take at most `most` items, evenly spaced."""
    return items[:: max(1, len(items) // most)][:most]


def _check(name: str, load: Load, expected: Sequence[str]) -> None:
    """Require that our answers equal the library's texts."""
    if name != "outrider":
        return
    different = sum(a != b for a, b in zip(load.texts, expected, strict=True))
    if different:
        raise ResourceError(f"{different} of {len(expected)} answers differ from the library's")
