"""COMET (Rei et al., 2020): a metric trained on human judgements of translations.

`comet-score` of the package unbabel-comet is run as a program in its own environment, because it
needs older versions of transformers (below 5) and NumPy (below 2). Its checkpoints are pickles, so
they are also better read by a separate process.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from outrider.errors import ConfigError, ResourceError

COMMAND = "comet-score"
VARIABLE = "OUTRIDER_COMET"
"""Environment variable with the path of the program, if it is not on the PATH."""
INSTALL = (
    "install unbabel-comet in an environment of its own (python -m venv comet; "
    f"comet/bin/pip install unbabel-comet) and set {VARIABLE}=comet/bin/{COMMAND}"
)


def find_comet() -> str:
    """Return the path of the program."""
    name = os.environ.get(VARIABLE) or COMMAND
    path = shutil.which(name)
    if path is None:
        raise ConfigError("--comet", f"{name} was not found; {INSTALL}")
    return path


def score_comet(
    sources: Sequence[str], translations: Sequence[str], references: Sequence[str], *, model: str
) -> float:
    """Return the mean score of the translations.

    Args:
        sources: Source texts.
        translations: Translations to score.
        references: Reference translations.
        model: A model of `comet-score`, such as `Unbabel/wmt22-comet-da`, or a checkpoint.
    """
    program = find_comet()
    with tempfile.TemporaryDirectory() as working:
        sides = {"s": sources, "t": translations, "r": references}
        arguments = []
        for name, lines in sides.items():
            path = Path(working, f"{name}.txt")
            path.write_text("".join(f"{' '.join(line.split())}\n" for line in lines), "utf-8")
            arguments += [f"-{name}", str(path)]
        result = Path(working, "scores.json")
        arguments += ["--model", model, "--gpus", "0", "--quiet", "--only_system"]
        ran = subprocess.run(  # noqa: S603 - the program that the user named
            [program, *arguments, "--to_json", str(result)],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode or not result.is_file():
            lines = (ran.stderr or ran.stdout).strip().splitlines() or ["no output"]
            raise ResourceError(f"{COMMAND} failed with {ran.returncode}: {lines[-1][:300]}")
        (scores,) = json.loads(result.read_text("utf-8")).values()
    return fmean(float(score["COMET"]) for score in scores)
