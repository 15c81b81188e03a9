"""Runs started the way a user starts them: `outrider train`, alone, under torchrun or on Ray."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from outrider.torch.training.log import read_log

OUTRIDER = Path(sys.executable).parent / "outrider"
VOLATILE = {"seconds", "tokens_per_second"}


class Run:
    """One run folder with its config."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        *,
        processes: int = 1,
        restarts: int = 0,
        ray: bool = False,
    ) -> None:
        self.folder = folder
        self.config = folder.with_suffix(".yaml")
        self.config.write_text(yaml.safe_dump({**config, "folder": str(folder)}))
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
        launcher += [f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
        self.command = [*(launcher if processes > 1 else []), str(OUTRIDER), "train"]
        if ray:
            self.command = [str(OUTRIDER), "train", "--ray", str(processes)]

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command, str(self.config)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self) -> str:
        """Run to the end and return what was printed."""
        process = self.start()
        output, _ = process.communicate(timeout=540)
        assert process.returncode == 0, output
        return output

    def log(self) -> list[dict[str, Any]]:
        """Return all records, without the measurements of speed."""
        return [
            {name: value for name, value in record.items() if name not in VOLATILE}
            for record in read_log(self.folder / "log.jsonl")
        ]

    def updates(self) -> list[dict[str, Any]]:
        return [record for record in self.log() if record["event"] == "update"]

    @property
    def weights(self) -> Path:
        return self.folder / "model" / "model.safetensors"

    def weights_hash(self) -> str:
        return hashlib.sha256(self.weights.read_bytes()).hexdigest()
