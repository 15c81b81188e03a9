"""Two versions in turns: decoding speed, start, serving, training, and equal text.

    git worktree add --detach OLD COMMIT
    pip install --no-deps --target OLD/core OLD/native; pip install --no-deps --target core ./native
    python lab/studies/two_versions.py OLD/src:OLD/core src:core decode demo/en-de LINES

Each version is a PYTHONPATH and runs in its own processes. In each round both run once, in random
order, and must write the same; the ratio is the median over rounds of old to new seconds (above 1:
the new version is faster), with a bootstrap interval of 95 %. Measurements:

    text    MODEL LINES    greedy int8 text of all lines, compared only
    decode  MODEL LINES    a loaded model, in modes, at batch sizes
    serve   MODEL LINES    `outrider serve`, eight clients, one sentence a request
    train   CONFIG         `outrider train`: seconds per step between log records, equal losses
"""

import argparse
import gzip
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from outrider.runtime.provenance import machine, write_result

COMMAND = "from outrider.cli.main import main; main()"
WORKER = """
import json, sys, time
import outrider
translator = outrider.load(sys.argv[1], threads=int(sys.argv[2]), backend="native")
print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    lines, batch, texts = order["lines"], order["batch"], []
    clock = time.process_time if order["cpu"] else time.perf_counter
    began = clock()
    for at in range(0, len(lines), batch):
        texts += translator.translate(lines[at:at + batch], **order["options"])
    seconds = clock() - began
    print(json.dumps({"seconds": seconds, "output": texts}), flush=True)
"""
Round = Callable[[], tuple[float, Any]]


def environment(path: str) -> dict[str, str]:
    """Return the environment of a version."""
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def compare(versions: Sequence[Round], rounds: int) -> dict[str, Any]:
    """Run both versions in turns; the first round is not counted."""
    dice, pairs = random.Random(0), []
    for turn in range(rounds + 1):
        both = {side: versions[side]() for side in dice.sample((0, 1), 2)}
        if both[0][1] != both[1][1]:
            sys.exit(f"the versions differ: {both[0][1]!r:.300}, {both[1][1]!r:.300}")
        if turn:
            pairs.append((both[0][0], both[1][0]))
    ratios = [old / new for old, new in pairs]
    drawn = sorted(median(dice.choices(ratios, k=rounds)) for _ in range(2000))
    return {
        "old_seconds": round(median(old for old, _ in pairs), 4),
        "new_seconds": round(median(new for _, new in pairs), 4),
        "ratio": round(median(ratios), 3),
        "interval": [round(drawn[50], 3), round(drawn[1949], 3)],
    }


class Worker:
    """A process of one version with a loaded model."""

    def __init__(self, path: str, model: Path, threads: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(model), str(threads)],
            env=environment(path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def decode(
        self, lines: list[str], batch: int, options: dict[str, Any], *, cpu: bool = False
    ) -> tuple[float, Any]:
        """Translate lines in calls of `batch`; seconds and texts."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"lines": lines, "batch": batch, "options": options, "cpu": cpu}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["seconds"], answer["output"]

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@contextmanager
def server(path: str, model: Path, threads: int) -> Iterator[str]:
    """Run `outrider serve` of one version; yields the address of its `/translate`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", f"xx-yy={model}", "--port", str(port), "--threads", str(threads)]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        env=environment(path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"{address}/translate"
    finally:
        process.terminate()
        process.wait()


def post(address: str, lines: list[str]) -> tuple[float, list[str]]:
    """Send each line as one request from eight clients; seconds and texts."""

    def send(line: str) -> str:
        body = json.dumps({"q": line, "source": "xx", "target": "yy"}).encode()
        request = urllib.request.Request(
            address, body, {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return str(json.load(answer)["translatedText"])

    with ThreadPoolExecutor(8) as clients:
        began = time.perf_counter()
        texts = list(clients.map(send, lines))
        return time.perf_counter() - began, texts


def train(path: str, config: Path, settings: list[str]) -> tuple[float, list[float]]:
    """Train in a new folder; median seconds per thousand tokens, and the losses."""
    with tempfile.TemporaryDirectory(prefix="outrider-train-") as folder:
        words = ["train", str(config), f"folder={folder}/run", f"data.folder={folder}/data"]
        subprocess.run(
            [sys.executable, "-c", COMMAND, *words, *settings],
            env=environment(path),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        records = [
            json.loads(line) for line in Path(folder, "run/log.jsonl").read_text().splitlines()
        ]
    steps = [record for record in records if "tokens_per_second" in record]
    speed = median(record["tokens_per_second"] for record in steps[1:])
    return 1000 / speed, [record["loss"] for record in steps]


def main() -> None:
    """Compare two versions."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("what", choices=("text", "decode", "serve", "train"))
    parser.add_argument("model", type=Path, help="model folder, or the config of train")
    parser.add_argument("lines", type=Path, nargs="?", help="source text, also .gz")
    parser.add_argument("--count", type=int, default=96)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--modes", default="ar")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--cpu", action="store_true", help="CPU seconds (decode), beside other work"
    )
    parser.add_argument("--set", action="append", default=[], help="key=value for train")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    paths = [
        ":".join(str(Path(part).resolve()) for part in path.split(":"))
        for path in (given.old, given.new)
    ]
    model, results = given.model.resolve(), {}
    lines: list[str] = []
    if given.lines:
        content = given.lines.read_bytes()
        text = gzip.decompress(content) if given.lines.suffix == ".gz" else content
        lines = text.decode().splitlines()[: given.count]
    with ExitStack() as stack:
        if given.what in ("text", "decode"):
            workers = [stack.enter_context(Worker(p, model, given.threads)) for p in paths]
            for mode in given.modes.split(","):
                for batch in map(int, given.batches.split(",")):
                    name, options = f"{mode}, batch {batch}", {"mode": mode}
                    runs = [
                        partial(worker.decode, lines, batch, options, cpu=given.cpu)
                        for worker in workers
                    ]
                    if given.what == "text":
                        old, new = (run()[1] for run in runs)
                        same = sum(map(str.__eq__, old, new))
                        results[name] = {"lines": len(lines), "same": same}
                    else:
                        results[name] = compare(runs, given.rounds)
                    print(name, results[name], flush=True)
        elif given.what == "serve":
            addresses = [stack.enter_context(server(p, model, given.threads)) for p in paths]
            results["eight clients"] = compare(
                [partial(post, address, lines) for address in addresses], given.rounds
            )
        else:
            results["thousand tokens"] = compare(
                [partial(train, path, model, given.set) for path in paths], given.rounds
            )
    print(json.dumps(results, indent=1))
    if given.json is not None:
        name = "/".join(model.parts[-2:])
        result = {"what": given.what, "model": name, "threads": given.threads, "cpu": given.cpu}
        result["results"] = results
        write_result(given.json, result | {"machine": machine()})


if __name__ == "__main__":
    main()
