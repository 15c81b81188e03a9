"""A server under overload: `python lab/studies/serve_overload.py MODEL`.

The capacity is measured first. Then requests arrive at several times that rate, independent of
answers, each on its own connection. Prints as JSON the number of answered and refused requests,
their times, and the server's memory with its slope. Exits with 1 for any status other than 200 and
503, or if an accepted request exceeds its deadline.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from itertools import cycle
from pathlib import Path
from statistics import linear_regression, quantiles
from urllib.parse import urlsplit

from outrider.data.lines import text_lines
from outrider.runtime.provenance import machine, versions
from outrider.serving.registry import read_spec
from outrider_lab.bench.serve.clients import ask_all
from outrider_lab.bench.serve.server import Server, serve_line, serving


def main() -> None:
    """Overload a server and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="As for outrider serve: FOLDER or en-de=FOLDER.")
    parser.add_argument("--source", type=Path, required=True, help="Lines to translate.")
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--times", type=float, default=4.0, help="Times the capacity.")
    parser.add_argument("--deadline", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    pair = read_spec(given.model).pair
    assert pair is not None
    same = {"source": pair[0], "target": pair[1]}
    bodies = [{"q": line, **same} for line in text_lines(given.source) if line.strip()]
    options = ("--threads", given.threads, "--deadline", given.deadline)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder) / "log", serve_line(given.model, *options)) as server,
    ):
        ask_all(server.url, bodies[:64], clients=64)  # a warm-up
        rate = ask_all(server.url, bodies[:256], clients=64).speed
        told = asyncio.run(_overload(server, bodies, given.times * rate, given.seconds))
    accepted = told["seconds"].get("200", {})
    late = accepted.get("max", 0.0) > given.deadline + 1
    wrong = {status for status in told["answers"] if status not in ("200", "503")}
    told = {
        "task": "overload",
        "model": Path(given.model).name,
        "can_do_per_second": round(rate, 1),
        "asked_per_second": round(given.times * rate, 1),
        "deadline": given.deadline,
        **told,
        "machine": machine(),
        "versions": versions(),
    }
    print(json.dumps(told, indent=2))
    if given.json is not None:
        given.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    sys.exit(1 if wrong or late else 0)


async def _overload(server: Server, bodies: list[dict], rate: float, seconds: float) -> dict:
    took: dict[str, list[float]] = {}
    memory: list[tuple[float, float]] = []
    endless = cycle(bodies)
    began = time.perf_counter()

    async def one() -> None:
        status, spent = await _ask(server.url, next(endless))
        took.setdefault(status, []).append(spent)

    async def watch() -> None:
        while True:
            held = server.memory()
            memory.append((time.perf_counter() - began, held or 0.0))
            await asyncio.sleep(max(0.25, seconds / 600))

    watching = asyncio.create_task(watch())
    asking: set[asyncio.Task[None]] = set()
    sent = 0
    while (now := time.perf_counter() - began) < seconds:
        while sent < now * rate:
            task = asyncio.create_task(one())
            asking.add(task)
            task.add_done_callback(asking.discard)
            sent += 1
        await asyncio.sleep(0.005)
    await asyncio.gather(*asking)
    watching.cancel()
    return {
        "sent": sent,
        "answers": dict(Counter({status: len(found) for status, found in took.items()})),
        "answered_per_second": round(len(took.get("200", [])) / seconds, 1),
        "refused_within_50_ms": _share(took.get("503", []), 0.05),
        "seconds": {status: _spread(found) for status, found in sorted(took.items())},
        "memory_mib": _trend(memory),
    }


async def _ask(url: str, body: dict) -> tuple[str, float]:
    """Send one request; return the status and the seconds to the answer."""
    place, data = urlsplit(url), json.dumps(body).encode()
    head = "POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    began = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(head.encode() + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data))
        writer.write(data)
        answer = await reader.read(-1)
        writer.close()
        await writer.wait_closed()
    except OSError as error:
        return type(error).__name__, time.perf_counter() - began
    return answer[9:12].decode() or "nothing", time.perf_counter() - began


def _share(found: list[float], seconds: float) -> float | None:
    """The share of requests within the limit."""
    return round(sum(one <= seconds for one in found) / len(found), 5) if found else None


def _spread(found: list[float]) -> dict[str, float]:
    if len(found) < 2:
        return {"max": round(max(found), 4)}
    cuts = quantiles(found, n=100, method="inclusive")
    return {f"p{cut}": round(cuts[cut - 1], 4) for cut in (50, 95, 99)} | {
        "max": round(max(found), 4)
    }


def _trend(memory: list[tuple[float, float]]) -> dict[str, float]:
    """Fit a line to the second half, after the caches are filled."""
    late = memory[len(memory) // 2 :]
    slope = linear_regression(*zip(*late, strict=True)).slope if len(late) > 2 else 0.0
    held = [mib for _, mib in memory]
    return {
        "first": held[0],
        "last": held[-1],
        "most": max(held),
        "per_minute_in_second_half": round(60 * slope, 3),
    }


if __name__ == "__main__":
    main()
