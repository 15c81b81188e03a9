"""`outrider student` killed with SIGKILL in three of its stages gives the same student.

    python lab/studies/student_killed.py CONFIG [OVERRIDE ...] --json FILE

With a tenth of the text and few updates, once undisturbed and once killed while the teacher
translates, while the student is cut, and while it is trained; after each kill the command is run
again. Weights and translations of some lines must be equal at the end. Nothing is scored: `tests`
are left out.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.config import as_yaml, load_config
from outrider.files import file_sha256
from outrider.runtime import load
from outrider.runtime.provenance import machine, versions, write_result
from outrider.torch.compress.student import StudentConfig
from outrider.torch.compress.student.run import corpus_root

LINES = ["你好，世界。", "请问最近的地铁站在哪里？", "他昨天买的书放在桌子上了。"]
WEIGHTS = ("start/model.safetensors", "model/model.safetensors", "small/model.safetensors")


@dataclass(frozen=True)
class Stage:
    """A stage in which the command is killed."""

    name: str
    reached: Callable[[Path], bool]
    """Whether the folder shows that the stage has begun."""


STAGES = (
    Stage("translate", lambda folder: bool([*folder.glob("work/translated.partial/*.done.json")])),
    Stage("shrink", lambda folder: (folder / "work/translated/manifest.json").is_file()),
    Stage("train", lambda folder: bool([*folder.glob("checkpoints/step-*")])),
)


def main() -> None:
    """Run both, compare, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--share", type=float, default=0.1, help="share of the text")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch, "student.yaml")
        small = smaller(options.config, options.overrides, options.share, options.steps)
        config.write_text(as_yaml(small), "utf-8")
        whole, broken = (Path(scratch, name) for name in ("whole", "broken"))
        began = time.monotonic()
        assert start(config, whole).wait() == 0
        seconds = [time.monotonic() - began]
        kills = [kill(config, broken, stage) for stage in STAGES]
        assert start(config, broken).wait() == 0
        seconds.append(time.monotonic() - began - seconds[0])
        sums = {name: [file_sha256(one / name) for one in (whole, broken)] for name in WEIGHTS}
        texts = [load(one / "small").translate(LINES) for one in (whole, broken)]
    for name, (first, second) in sums.items():
        print(f"{name}: {'the same' if first == second else 'ANOTHER'}")
    result = {"task": "a student that is killed", "share": options.share, "steps": options.steps}
    result |= {"seconds": dict(zip(("undisturbed", "killed"), seconds, strict=True))}
    result |= {"kills": kills, "weights": sums, "same_text": texts[0] == texts[1]}
    if options.json is not None:
        write_result(options.json, {**result, "machine": machine(), "versions": versions()})
    if any(first != second for first, second in sums.values()) or texts[0] != texts[1]:
        raise SystemExit("another student")


def smaller(path: Path, overrides: list[str], share: float, steps: int) -> StudentConfig:
    """Read a config and reduce its text."""
    config = load_config(StudentConfig, path, [*overrides, f"train.steps={steps}"])
    root = corpus_root(config)
    text = {
        name: max(1, round(share * (most or _lines(root.path(name)))))
        for name, most in config.text.items()
    }
    every = {"save_every": steps // 3, "evaluate_every": steps // 3}
    train = config.train.model_copy(update=every)
    return config.model_copy(update={"text": text, "train": train, "tests": {}, "work": None})


def _lines(path: Path) -> int:
    from outrider.data.lines import text_lines

    return len(text_lines(path))


def start(config: Path, folder: Path) -> "subprocess.Popen[bytes]":
    """Start the command."""
    line = ["student", str(config), f"folder={folder}", "-q"]
    code = f"import sys; from outrider.cli.main import run; sys.exit(run({line!r}))"
    return subprocess.Popen([sys.executable, "-c", code])


def kill(config: Path, folder: Path, stage: Stage) -> dict[str, Any]:
    """Start the command, and kill it in the given stage."""
    began, process = time.monotonic(), start(config, folder)
    while not stage.reached(folder):
        assert process.poll() is None, f"it ended before {stage.name}"
        time.sleep(0.02)
    process.kill()
    process.wait()
    print(f"killed in {stage.name} after {time.monotonic() - began:.0f} s", flush=True)
    return {"stage": stage.name, "seconds": round(time.monotonic() - began, 1)}


if __name__ == "__main__":
    main()
