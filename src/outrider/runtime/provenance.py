"""Provenance of results: machine, versions, and checksums of weights and data."""

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from outrider.backends.native import default_threads
from outrider.files import file_sha256, write_json
from outrider.formats.folder import model_files

_INSTRUCTIONS = (
    *("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16"),
    *("amx_bf16", "amx_int8", "asimddp"),
)
_PACKAGES = (
    *("outrider", "outrider-native", "torch", "transformers", "tokenizers", "safetensors"),
    *("sacrebleu", "numpy", "ctranslate2", "ray"),
)


def versions() -> dict[str, str]:
    """Return the versions of Python and of packages that can change a result."""
    result = {"python": platform.python_version()}
    if commit := _commit():
        result["commit"] = commit
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            result[package] = version(package)
    return result


def machine() -> dict[str, Any]:
    """Describe the machine, as far as the system reports it."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _cpuinfo("model name") or platform.processor(),
        "instructions": [name for name in _INSTRUCTIONS if name in _cpuinfo("flags").split()],
        "cores": os.cpu_count(),
        "threads": default_threads(),
        "memory_gib": _memory_gib(),
    }


def _memory_gib() -> float | None:
    if not hasattr(os, "sysconf"):  # Windows
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def show_score(value: float | str) -> str:
    """Format a score for display; files keep every digit."""
    return f"{value:,.3f}" if isinstance(value, float) else str(value)


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result as JSON atomically, with the current time."""
    stamped = {**result, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    write_json(path, stamped)


def _cpuinfo(key: str) -> str:
    """Return a value of the first core in /proc/cpuinfo; empty on other systems than Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _commit() -> str:
    """Return the commit of this checkout, with a plus if files differ; empty if installed."""
    here = Path(__file__).parent
    if not any((folder / ".git").exists() for folder in here.parents):
        return ""
    commands = ("git rev-parse --short=12 HEAD", "git status --porcelain --untracked-files=no")
    try:
        commit, changes = (
            subprocess.run(  # noqa: S603 - fixed commands
                command.split(), cwd=here, capture_output=True, text=True, check=True, timeout=10
            ).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{commit}+" if changes else commit


_SIDE_DECODERS = ("drafter/model.safetensors", "ctc/model.safetensors")


def origin(folder: Path, **files: Path | None) -> dict[str, Any]:
    """Return the checksums of a model and of files, with machine and versions."""
    files_of_model = {str(path.relative_to(folder)): path for path in model_files(folder)}
    files_of_model |= {name: folder / name for name in _SIDE_DECODERS}
    weights = {name: path for name, path in files_of_model.items() if path.is_file()}
    return {
        "model": "/".join(folder.resolve().parts[-2:]),
        "weights_sha256": {name: file_sha256(path) for name, path in weights.items()},
        "data": {
            name: {"file": path.name, "sha256": file_sha256(path)}
            for name, path in files.items()
            if path is not None
        },
        "machine": machine(),
        "versions": versions(),
    }
