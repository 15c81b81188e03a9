"""A server under load beside the library alone, and beside CTranslate2 behind FastAPI.

All three decode the same lines with the same weights in int8 on as many threads. They take turns,
so that other load on the machine hits all alike; a ratio is the median over the turns. Every answer
of ours must be the text that the library writes.
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

__all__ = ["CLIENTS", "measure_serve"]

CLIENTS = (1, 16, 64, 256)
MATCHED = 64
"""Clients, and the batch of the library alone, at which servers are compared."""
FEW, SOME = 32, 64
"""Lines that a single client asks for, and that LibreTranslate is: both take their time."""
_EXPORT = (
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
    """Measure a model that translates.

    Args:
        model: As `outrider serve` takes it: `FOLDER` or `en-de=FOLDER`.
        lines: What clients ask for, one line a request.
        clients: How many ask at once.
        repeats: Turns in which servers are compared, at 64 clients.
        threads: CPU threads of each engine.
        libretranslate: Address of a LibreTranslate that serves the same languages, if one runs.
        report: Told what is being done.
    """
    spec = read_spec(model)
    if spec.pair is None:
        raise ModelError(f"{model}: bench serve takes one pair of languages; write en-de={model}")
    alone = load(spec.folder, backend="native", threads=threads)
    assert isinstance(alone, Translator)
    options: dict[str, Any] = {}
    if alone.backend.drafts is not None:
        options["mode"] = "tandem"
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="outrider-serve-")))
        report("exporting the model for CTranslate2")
        subprocess.run(  # noqa: S603
            [sys.executable, "-c", _EXPORT, str(spec.folder), str(place / "peer")], check=True
        )
        ours = serve_line(model, "--threads", threads, "--deadline", 600)
        servers = {
            "outrider": stack.enter_context(serving(place / "ours", ours)),
            "ctranslate2": stack.enter_context(serving(place / "theirs", _peer(place, threads))),
        }
        if libretranslate is not None:
            servers["libretranslate"] = Server(libretranslate, None)
        wanted = alone.translate(list(lines), split=False, **options)
        turns = _turns(alone, servers, spec, lines, wanted, options, repeats, report)
        rows = _rows(servers, spec, lines, wanted, clients, report)
    speeds = {name: [one[name] for one in turns] for name in turns[0]}
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
        "sentences_per_second": {name: median(found) for name, found in speeds.items()},
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
    alone: Translator,
    servers: dict[str, Server],
    spec: Spec,
    lines: Sequence[str],
    wanted: Sequence[str],
    options: dict[str, Any],
    repeats: int,
    report: Report,
) -> list[dict[str, float]]:
    """Return the sentences a second of everybody in each turn; the first is a warm-up."""
    turns = []
    bodies = _bodies(spec, lines)
    for turn in range(repeats + 1):
        speeds: dict[str, float] = {}
        report(f"turn {turn} of {repeats}: the library alone")
        began = perf_counter()
        for start in range(0, len(lines), MATCHED):
            alone.translate(list(lines[start : start + MATCHED]), split=False, **options)
        speeds["offline"] = len(lines) / (perf_counter() - began)
        for name, server in servers.items():
            report(f"turn {turn} of {repeats}: {name}, {MATCHED} clients")
            some = _spread(bodies, SOME) if name == "libretranslate" else bodies
            load = ask_all(server.url, some, clients=MATCHED)
            _check(name, load, wanted)
            speeds[name] = load.speed
        turns += [speeds] * bool(turn)
    return turns


def _rows(
    servers: dict[str, Server],
    spec: Spec,
    lines: Sequence[str],
    wanted: Sequence[str],
    clients: Sequence[int],
    report: Report,
) -> list[dict[str, Any]]:
    """Return what clients of each number meet: speed, waiting times, memory."""
    rows = []
    for count in clients:
        for name, server in servers.items():
            few = lines[:FEW] if count == 1 else lines
            if name == "libretranslate":
                few = _spread(few, SOME)
            report(f"{name}: {count} clients")
            load = ask_all(server.url, _bodies(spec, few), clients=count)
            _check(name, load, wanted[: len(few)])
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
                asked = [{"model": spec.name, "prompt": one, "stream": True} for one in few]
                waited = first_tokens(server.url, asked, clients=count)
                row["first_token_ms"] = round(1000 * median(waited), 1)
            rows.append(row)
    return rows


def _spread(all_of_them: Sequence[Any], most: int) -> Sequence[Any]:
    """Take some, from all over."""
    return all_of_them[:: max(1, len(all_of_them) // most)][:most]


def _check(name: str, load: Load, wanted: Sequence[str]) -> None:
    """Refuse a figure for texts that are not those of the library."""
    if name != "outrider":
        return
    different = sum(a != b for a, b in zip(load.texts, wanted, strict=True))
    if different:
        raise ResourceError(f"{different} of {len(wanted)} answers differ from the library's")
