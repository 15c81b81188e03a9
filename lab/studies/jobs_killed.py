"""A job of a million sentences under faults.

    python lab/studies/jobs_killed.py MODEL --json FILE

`outrider distill --workers 2` translates generated English sentences with MODEL, once undisturbed,
and once with faults: a worker, the driver and Ray's head are killed with SIGKILL, the disk is
filled, a file of the corpus is damaged, and a second driver is started on the same folder; after
each fault the command is run again. At the end rows, order and checksums must equal those of the
first run, and no finished shard may have been translated again. Needs root on Linux, to mount the
small disk.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

sys.path.append(str(Path(__file__).parents[2]))

from outrider.data import prepare as prepare_module
from outrider.data.config import PrepareConfig
from outrider.data.prepared import open_prepared
from outrider.files import open_store
from outrider.files.hub import model_folder
from outrider.jobs.folder import partial, read_record
from outrider.runtime.provenance import machine, versions, write_result
from tests.helpers.slow_distill import sources
from tests.helpers.small_disk import BALLAST, fill, small_disk

WORDS = (
    ("The", "A", "Every", "This", "One"),
    ("old", "young", "small", "red", "good", "new"),
    ("man", "woman", "dog", "child", "teacher", "cat", "boy", "girl"),
    ("sees", "likes", "has", "needs", "buys", "finds"),
    ("a house", "the book", "a car", "some water", "the door", "an apple", "the money", "a letter"),
    (".", " today.", " here.", " again.", " now."),
)
RAY_WORKER, RAY_HEAD = "ray::_Worker", "gcs_server"


def write_corpus(folder: Path, model: Path, rows: int, shards: int) -> Path:
    """Prepare generated sentences with the tokenizer of the model."""
    dice = random.Random(0)
    for name in ("en", "de"):
        with (folder / f"train.{name}").open("w") as file:
            for _ in range(rows + 2):
                *words, end = (dice.choice(some) for some in WORDS)
                file.write(" ".join(words) + end + "\n")
    prepare_module.BLOCK_ROWS = -(-rows // shards)
    values = {
        "folder": str(folder / "prepared"),
        "root": str(folder),
        "train": {"source": "train.en", "target": "train.de"},
        "valid_rows": 2,
        "shard_rows": 10 * prepare_module.BLOCK_ROWS,
        "tokenizer": {"folder": str(model)},
        "clean": {"drop_duplicates": False},
    }
    return prepare_module.prepare(PrepareConfig.model_validate(values), progress=False).folder


@dataclass
class Command:
    """`outrider distill`, run repeatedly until it succeeds."""

    model: Path
    data: Path
    out: Path
    workers: int
    process: subprocess.Popen[str] = field(init=False)
    said: str = ""
    ended: dict[str, float] = field(default_factory=dict)
    """When each known finished shard was finished."""

    def start(self) -> None:
        """Start the command in the background."""
        line = ["outrider", "distill", self.model, "--data", self.data, "--out", self.out]
        line += ["--workers", self.workers, "--threads", 1, "--dtype", "int8", "--quiet"]
        self.process = subprocess.Popen(
            [str(one) for one in line], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def wait(self) -> tuple[int, str]:
        """Wait for its end; return the exit code and its stderr."""
        if not self.process.stderr.closed:
            self.said = self.process.communicate()[1].strip()
        return self.process.returncode, self.said

    def look(self) -> int:
        """Return the number of finished shards; earlier ones must be unchanged."""
        work = open_store(partial(self.out))
        records = {path.name: read_record(work, path.name).ended for path in self._records()}
        again = [name for name, ended in self.ended.items() if records.get(name) != ended]
        assert not again, f"finished shards were done again: {again}"
        self.ended = records
        return len(records)

    def reach(self, shards: int) -> None:
        """Wait until this many shards are finished."""
        while sum(1 for _ in self._records()) < shards:
            assert self.process.poll() is None, self.wait()
            time.sleep(0.05)

    def family(self, name: str) -> list[psutil.Process]:
        """Return the child processes whose command contains `name`."""
        everyone = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in everyone if name in " ".join(one.cmdline()[:1])]

    def _records(self) -> list[Path]:
        return list(partial(self.out).glob("*.done.json"))


def kill_worker(command: Command) -> str:
    """Kill a worker; the command continues."""
    victim = command.family(RAY_WORKER)[0]
    victim.send_signal(signal.SIGKILL)
    done = command.look()
    command.reach(done + 3)
    assert command.process.poll() is None
    return "went on by itself"


def kill_driver(command: Command) -> str:
    """Kill the command itself; run it again after its workers have ended."""
    workers = command.family("ray::")
    command.process.send_signal(signal.SIGKILL)
    command.wait()
    psutil.wait_procs(workers, timeout=120)
    return _again(command)


def kill_head(command: Command) -> str:
    """Kill Ray's head process; run the command again."""
    (head,) = command.family(RAY_HEAD)
    head.send_signal(signal.SIGKILL)
    began = time.monotonic()
    code, said = command.wait()
    if code == 0:
        return "the workers were done before Ray gave up"
    after = f"exit {code} after {time.monotonic() - began:.0f} s"
    return f"{after}: {_last(said)}; {_again(command)}"


def second_driver(command: Command) -> str:
    """Start a second command on the same folder; it is refused, the first one continues."""
    other = Command(command.model, command.data, command.out, command.workers)
    other.start()
    code, said = other.wait()
    assert code == 2, said
    assert "another process is working there" in said
    return f"exit {code}: {_last(said)}"


def full_disk(command: Command) -> str:
    """Fill the disk; the command ends with an error. Free the space and run it again."""
    fill(command.out.parent, leave=4096)
    code, said = command.wait()
    (command.out.parent / BALLAST).unlink()
    assert code == 2, said
    assert "the disk is full" in said
    return f"exit {code}: {_last(said)}; {_again(command)}"


def damaged_input(command: Command) -> str:
    """Damage a file that was not read yet; its shards are set aside, all others are translated."""
    command.process.send_signal(signal.SIGINT)
    command.wait()
    victim = sorted(command.data.glob("train-*.parquet"))[-1]
    whole = victim.read_bytes()
    victim.write_bytes(whole[:5000] + b"damaged" + whole[5007:])
    try:
        command.start()
        code, said = command.wait()
        assert code == 2, said
        assert victim.name in said
    finally:
        victim.write_bytes(whole)
    return f"exit {code}: {_last(said)}; {_again(command)}"


EVENTS: tuple[Callable[[Command], str], ...] = (
    *(kill_worker, kill_driver, second_driver, full_disk, kill_head, damaged_input),
)


def _again(command: Command) -> str:
    done = command.look()
    command.start()
    return f"given again at {done} shards"


def _last(said: str) -> str:
    last = said.splitlines()[-1] if said else "nothing"
    return last.replace(f"{tempfile.gettempdir()}/", "TMP/")[:300]


def disturb(command: Command, shards: int) -> list[dict[str, Any]]:
    """Apply all faults one after another, spread over the job."""
    seen = []
    command.start()
    for n, event in enumerate(EVENTS, 1):
        command.reach(n * shards // (len(EVENTS) + 2))
        before = command.look()
        began = time.monotonic()
        seen.append({"event": event.__name__, "shards_before": before, "what": event(command)})
        print(f"{seen[-1]}  {time.monotonic() - began:.1f} s", flush=True)
    code, said = command.wait()
    assert code == 0, said
    return seen


def compare(data: Path, whole: Path, found: Path) -> int:
    """Check that every row is present once, in order, or counted as dropped; and equal files."""
    first, second = (open_prepared(one, verify=True) for one in (whole, found))
    assert first.manifest.splits == second.manifest.splits
    split = second.manifest.splits["train"]
    rest, rows = iter(sources(open_prepared(data), "train")), sources(second, "train")
    assert all(row in rest for row in rows), "another order, or a row twice"
    return len(rows) + sum(one.count for one in split.dropped.values())


def main() -> None:
    """Run both jobs, compare them, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background shells ignore SIGINT
    model = model_folder(given.model).resolve()
    with tempfile.TemporaryDirectory() as scratch, small_disk(Path(scratch, "disk"), "1g") as disk:
        data = write_corpus(Path(scratch), model, given.rows, given.shards)
        whole = Command(model, data, Path(scratch, "whole"), given.workers)
        began = time.monotonic()
        whole.start()
        code, said = whole.wait()
        assert code == 0, said
        seconds = [time.monotonic() - began]
        print(f"undisturbed: {seconds[0]:.0f} s", flush=True)
        killed = Command(model, data, disk / "out", given.workers)
        seen = disturb(killed, given.shards)
        seconds.append(time.monotonic() - began - seconds[0])
        rows = compare(data, whole.out, killed.out)
    print(f"disturbed: {seconds[1]:.0f} s; {rows:,} rows, the same checksums")
    result = {"task": "a job that is killed", "rows": rows, "shards": given.shards}
    result |= {"seconds": {"undisturbed": seconds[0], "disturbed": seconds[1]}, "events": seen}
    result |= {"workers": given.workers, "machine": machine(), "versions": versions()}
    if given.json is not None:
        write_result(given.json, result)


if __name__ == "__main__":
    main()
