"""COMET (Rei et al., 2020): translations judged by a model that was trained on people's judgements.

`comet-score` of the package unbabel-comet is run as a program. It asks for older versions of what
Outrider needs (transformers below 5, NumPy below 2), so it lives in an environment of its own; and
its checkpoints are pickled, which is another reason to let a process of its own read them.
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

__all__ = ["COMMAND", "find_comet", "score_comet"]

COMMAND = "comet-score"
VARIABLE = "OUTRIDER_COMET"
"""Names the program where it is not on the PATH."""
INSTALL = (
    "install unbabel-comet in an environment of its own (python -m venv comet; "
    f"comet/bin/pip install unbabel-comet) and set {VARIABLE}=comet/bin/{COMMAND}"
)


def find_comet() -> str:
    """Return the program, or say how to install it."""
    wanted = os.environ.get(VARIABLE) or COMMAND
    found = shutil.which(wanted)
    if found is None:
        raise ConfigError("--comet", f"{wanted} is not there; {INSTALL}")
    return found


def score_comet(
    sources: Sequence[str], translations: Sequence[str], references: Sequence[str], *, model: str
) -> float:
    """Return the mean score of the translations.

    Args:
        sources: What was translated.
        translations: By a machine.
        references: By people.
        model: A name that `comet-score` knows, such as `Unbabel/wmt22-comet-da`, or a checkpoint.
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
            said = (ran.stderr or ran.stdout).strip().splitlines() or ["nothing"]
            raise ResourceError(f"{COMMAND} ended with {ran.returncode} and said: {said[-1][:300]}")
        (scored,) = json.loads(result.read_text("utf-8")).values()
    return fmean(float(one["COMET"]) for one in scored)
