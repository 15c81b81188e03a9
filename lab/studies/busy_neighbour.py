"""Time of a training update on an idle machine and beside busy processes.

    python lab/studies/busy_neighbour.py --json FILE

`outrider train` runs a config with each OpenMP setting, in a new process each, alone and beside the
given number of endless loops. Settings take turns; a figure is the median over rounds of the mean
update time in the run's log. `load` is the load average before each run; figures for an idle
machine need a low one.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outrider.runtime.provenance import machine, versions, write_result
from outrider.torch.training.log import read_log

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
WARM = 5
VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
SETTINGS: dict[str, dict[str, str]] = {
    "before: GNU OpenMP spins 300,000 turns": {"GOMP_SPINCOUNT": "300000"},
    "after: what Outrider sets": {},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
BEFORE, AFTER, PASSIVE, ONE = SETTINGS


@contextmanager
def neighbours(count: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Run this many busy processes during the block."""
    loop = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(loop) for _ in range(count)]
    try:
        yield busy
    finally:
        for process in busy:
            process.kill()
            process.wait()


def train(data: Path, updates: int, variables: dict[str, str]) -> float:
    """Train in a new process and return the seconds per update."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"folder={folder}/run", f"data.folder={data}", f"train.steps={updates}"]
        overrides += ["train.evaluate_every=0", f"train.save_every={updates}", "train.average=1"]
        overrides += ["train.stop_metric=loss", "train.log_every=1", "train.precision=float32"]
        done = subprocess.run(
            [sys.executable, "-m", "outrider", "train", str(CONFIG), *overrides],
            env=environment | variables,
            cwd=CONFIG.parents[1],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        log = read_log(Path(folder) / "run" / "log.jsonl")
    seconds = [record["seconds"] for record in log if record["event"] == "update"]
    return (seconds[-1] - seconds[WARM - 1]) / (len(seconds) - WARM)


def measure(updates: int, rounds: int, counts: list[int]) -> list[dict[str, Any]]:
    """Measure every setting with every number of busy processes, in turns."""
    rows: list[dict[str, Any]] = [
        {"neighbours": count, "setting": name, "variables": variables, "seconds": [], "load": []}
        for count in counts
        for name, variables in SETTINGS.items()
    ]
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data"
        train(data, WARM + 1, {})  # prepares the data
        for turn in range(rounds):
            for row in rows[:: -1 if turn % 2 else 1]:
                row["load"].append(round(os.getloadavg()[0], 2))
                with neighbours(row["neighbours"]):
                    row["seconds"].append(train(data, updates, row["variables"]))
                time.sleep(1)
    for row in rows:
        row["median"] = statistics.median(row["seconds"])
    return rows


def main() -> None:
    """Measure, print a table and write the result if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = measure(options.updates, options.rounds, options.neighbours)
    print("| neighbours | setting | ms an update | of one thread |\n|---:|---|---:|---:|")
    for row in rows:
        alone = next(
            one["median"]
            for one in rows
            if (one["neighbours"], one["setting"]) == (row["neighbours"], ONE)
        )
        row["of_one_thread"] = row["median"] / alone
        shown = f"{row['median'] * 1000:.0f} | {row['of_one_thread']:.2f}"
        print(f"| {row['neighbours']} | {row['setting']} | {shown} |")
    result = {"task": "training beside busy processes", "config": CONFIG.name, "rows": rows}
    result |= {"updates": options.updates, "warm": WARM, "rounds": options.rounds}
    result |= {"machine": machine(), "versions": versions()}
    if options.json is not None:
        write_result(options.json, result)


if __name__ == "__main__":
    main()
