"""Start time of two versions in turns: a new process translates one sentence, then ends.

    git worktree add --detach OLD COMMIT
    pip install --no-deps --target OLD/core OLD/native; pip install --no-deps --target core ./native
    python lab/studies/start_builds.py OLD/src:OLD/core src:core demo/en-de --json start.json

Each version is a PYTHONPATH. States of the cache: `warm` (packed weights are found), `cold` (it is
empty), `unwritable` (its path lies below a file), `beside` (`outrider export --to native`, and an
unwritable cache). In each pair both versions run once, in random order; the text must be equal. The
ratio is that of the medians, new to old, with a bootstrap interval of 95 % over pairs.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from outrider.runtime.provenance import machine, write_result

TEXT = "Where is the station?"
RUN = "from outrider.cli.main import main; main()"
STATES = ("warm", "cold", "unwritable", "beside")
MEASURED = ("seconds", "cpu", "mib")


class Version:
    """One version with caches and a copy of the model of its own."""

    def __init__(self, path: str, model: Path, place: Path) -> None:
        self.path, self.model, self.place = path, model, place
        self.copy, self.file = place / "model", place / "file"
        shutil.copytree(model, self.copy)
        self.file.touch()
        self.run("export", str(self.copy), "--to", "native", cache="off")

    def start(self, state: str) -> tuple[dict[str, float], str]:
        """Translate in a new process; return the measurements and the text."""
        model = self.copy if state == "beside" else self.model
        cache = self.place / state
        if state == "cold":
            shutil.rmtree(cache, ignore_errors=True)
        elif state != "warm":
            cache = self.file / "below"
        return self.run(
            "translate", "--model", str(model), "--threads", "1", TEXT, cache=str(cache)
        )

    def run(self, *words: str, cache: str) -> tuple[dict[str, float], str]:
        """Run a command in a new process."""
        environment = os.environ | {"PYTHONPATH": self.path, "OMP_NUM_THREADS": "1"}
        environment |= {"OUTRIDER_CACHE": cache, "PYTHONPYCACHEPREFIX": str(self.place / "code")}
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, *words], env=environment, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        text = process.stdout.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"outrider {' '.join(words)} failed")
        seconds = time.perf_counter() - began
        cpu, mib = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
        return {"seconds": seconds, "cpu": cpu, "mib": mib}, text


def compare(pairs: list[list[dict[str, float]]], key: str) -> dict[str, float | list[float]]:
    """Return medians of both versions and their ratio with its interval."""

    def ratio(some: list[list[dict[str, float]]]) -> float:
        return median(new[key] for _, new in some) / median(old[key] for old, _ in some)

    dice = random.Random(0)
    drawn = sorted(ratio(dice.choices(pairs, k=len(pairs))) for _ in range(2000))
    old, new = (median(pair[side][key] for pair in pairs) for side in (0, 1))
    interval = [round(drawn[50], 3), round(drawn[1949], 3)]
    return {
        "old": round(old, 4),
        "new": round(new, 4),
        "ratio": round(ratio(pairs), 3),
        "interval": interval,
    }


def main() -> None:
    """Compare two versions."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--states", default=",".join(STATES))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(prefix="outrider-start-") as place:
        versions = []
        for name in ("old", "new"):
            path = ":".join(str(Path(one).resolve()) for one in getattr(given, name).split(":"))
            versions.append(Version(path, given.model.resolve(), Path(place) / name))
        dice = random.Random(0)
        for state in given.states.split(","):
            pairs = []
            for turn in range(given.pairs + 2):  # the first two fill caches
                if turn == 2 and state == "warm":
                    time.sleep(2)  # checksums of files older than two seconds are cached
                order = dice.sample((0, 1), 2)
                both = {side: versions[side].start(state) for side in order}
                if both[0][1] != both[1][1]:
                    sys.exit(f"the versions give different text: {both[0][1]!r}, {both[1][1]!r}")
                pairs.append([both[0][0], both[1][0]])
            found[state] = {key: compare(pairs[2:], key) for key in MEASURED}
            for key in MEASURED:
                print(state, key, found[state][key], flush=True)
    if given.json is not None:
        result = {
            "model": "/".join(given.model.resolve().parts[-2:]),
            "pairs": given.pairs,
            "states": found,
        }
        write_result(given.json, result | {"machine": machine()})


if __name__ == "__main__":
    main()
