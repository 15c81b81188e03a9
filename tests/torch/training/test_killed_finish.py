"""A run killed while it writes the final model writes it completely at the next start."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider.config import as_yaml
from outrider.torch.training.folder import RunFolder
from outrider.torch.training.run import train_run

from .test_damage import config, trained  # noqa: F401  (a fixture)

pytestmark = pytest.mark.slow

KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import outrider.files
from outrider.config import load_config
from outrider.torch.models import Seq2Seq
from outrider.torch.training.run import train_run
from outrider.run_config import RunConfig

place = sys.modules["outrider.files.writing"]
rename, save, rmtree = Path.rename, Seq2Seq.save_pretrained, shutil.rmtree

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def half_saved(self, folder, *args, **options):
    save(self, folder, *args, **options)
    weights = Path(folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    die()

def renamed(path, target):
    if sys.argv[2] == "before the renames" and str(target).endswith("-old"):
        die()
    rename(path, target)
    if sys.argv[2] == "between the renames" and str(target).endswith("-old"):
        die()
    if sys.argv[2] == "after the renames" and Path(target).name == "model":
        die()

if sys.argv[2] == "while it is written":
    Seq2Seq.save_pretrained = half_saved
else:
    Path.rename = renamed
train_run(load_config(RunConfig, sys.argv[1]))
"""
MOMENTS = [
    "while it is written",
    "before the renames",
    "between the renames",
    "after the renames",
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_final_model_is_written_again(
    trained: Path,  # noqa: F811
    tmp_path: Path,
    moment: str,
) -> None:
    other = config(trained).model_copy(update={"name": f"new {moment}"})
    (tmp_path / "run.yaml").write_text(as_yaml(other))
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run.yaml"), moment]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    folder = RunFolder(Path(other.folder))
    if moment in MOMENTS[:2]:
        assert outrider.load(folder.model), "the model before it"
        assert name(folder) != other.name
    assert folder.model.exists() == (moment != "between the renames")

    model = train_run(other)
    assert outrider.load(model)
    assert name(folder) == other.name
    assert not [path for path in folder.path.iterdir() if "partial" in path.name]


def name(folder: RunFolder) -> Any:
    return json.loads((folder.model / "provenance.json").read_text())["config"]["name"]
