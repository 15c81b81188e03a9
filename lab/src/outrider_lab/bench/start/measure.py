"""Time to the first translation and peak memory of `outrider translate`, relative to CTranslate2.

Every run is a new process that loads the model and translates one sentence. Both engines take
turns, on one thread each, with the same int8 weights and the same tokenizer. The first round is not
counted and fills the caches: byte code, file pages, and our packed weights. `packing` is a start
without packed weights.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from outrider.backends import native
from outrider.errors import ResourceError
from outrider.files.hub import model_folder
from outrider.files.writing import VARIABLE
from outrider.runtime.provenance import machine, versions

TEXT = "Where is the station?"
_LEFT_OUT = ("PYTHONDONTWRITEBYTECODE", "OUTRIDER_BACKEND", "OUTRIDER_ISA")
"""Environment variables that would change the measurement."""
_HERE = Path(__file__).parent
_OURS = "from outrider.cli.main import main; main()"
_EXPORT = (
    "import sys; from outrider.torch.export import export_ctranslate2;"
    "export_ctranslate2(sys.argv[1], sys.argv[2], quantization='int8')"
)


def measure_start(
    model: str | Path,
    *,
    text: str = TEXT,
    runs: int = 10,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure a model folder; return medians of `runs` processes of each engine.

    Args:
        model: A model folder or Hub id that can be exported for CTranslate2.
        text: The text to translate.
        runs: Counted processes of each engine.
        report: Called with a line on every step.
    """
    folder = model_folder(model)
    with TemporaryDirectory(prefix="outrider-start-") as temporary:
        place = Path(temporary)
        environment = {name: os.environ[name] for name in os.environ if name not in _LEFT_OUT}
        environment |= {"PYTHONPYCACHEPREFIX": str(place / "bytecode"), "OMP_NUM_THREADS": "1"}
        environment[VARIABLE] = str(place / "packed")
        report("exporting the model for CTranslate2")
        _run([sys.executable, "-c", _EXPORT, str(folder), str(place / "peer")], environment)
        ours = [sys.executable, "-c", _OURS, "translate", "--model", str(folder), "--threads", "1"]
        commands = {
            "outrider": [*ours, text],
            "packing": ["env", f"{VARIABLE}=off", *ours, text],
            "ctranslate2": [sys.executable, str(_HERE / "peer.py"), str(place / "peer"), text],
        }
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
        for run in range(runs + 1):
            report(f"round {run} of {runs}" if run else "a first round, to fill caches")
            lines = _run(_launch(list(commands.values())), environment).splitlines()
            for name, line in zip(commands, lines, strict=True):
                results[name] += [json.loads(line)] * bool(run)
    return _result(folder, text, runs, results)


def _launch(commands: list[list[str]]) -> list[str]:
    return [sys.executable, str(_HERE / "launch.py"), json.dumps(commands)]


def _run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(  # noqa: S603 - our own commands
        command, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ResourceError(f"a measured process failed: {last}")
    return done.stdout


def _result(
    folder: Path, text: str, runs: int, results: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    seconds = {name: median(row["seconds"] for row in rows) for name, rows in results.items()}
    mib = {name: median(row["kib"] for row in rows) / 1024 for name, rows in results.items()}
    texts = {name: rows[0]["text"] for name, rows in results.items()}
    return {
        "model": str(folder),
        "text": text,
        "runs": runs,
        "seconds": round(seconds["outrider"], 4),
        "mib": round(mib["outrider"], 1),
        "ratio_time_to_ctranslate2": round(seconds["outrider"] / seconds["ctranslate2"], 3),
        "ratio_memory_to_ctranslate2": round(mib["outrider"] / mib["ctranslate2"], 3),
        "ctranslate2": {
            "seconds": round(seconds["ctranslate2"], 4),
            "mib": round(mib["ctranslate2"], 1),
        },
        "packing": {"seconds": round(seconds["packing"], 4), "mib": round(mib["packing"], 1)},
        "texts": texts,
        "same_text": len(set(texts.values())) == 1,
        "all_seconds": {
            name: [round(row["seconds"], 4) for row in rows] for name, rows in results.items()
        },
        "instruction_set": native.choose_instruction_set(),
        "machine": machine(),
        "versions": versions(),
    }
