"""Modules that Windows lacks are imported only where needed, with one error message."""

import subprocess
import sys

import pytest

from outrider.errors import UnsupportedError
from outrider.runtime import memory
from outrider.runtime import provenance as results

IMPORT_ALL = """
import builtins, importlib, pkgutil
usual = builtins.__import__

def guarded(name, globals=None, *more, **named):
    ours = (globals or {}).get("__name__", "").startswith("outrider")
    if ours and name in ("resource", "fcntl", "termios", "pwd", "grp"):
        raise ImportError(f"{globals['__name__']} imports {name}")
    return usual(name, globals, *more, **named)

builtins.__import__ = guarded
import outrider
for module in pkgutil.walk_packages(outrider.__path__, "outrider."):
    importlib.import_module(module.name)
"""


def test_every_module_imports_without_unix_modules() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_measuring_memory_without_getrusage_gives_one_error_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_read_status", lambda _: None)
    monkeypatch.setitem(sys.modules, "resource", None)
    with pytest.raises(UnsupportedError, match="measuring memory needs getrusage"):
        memory.peak_bytes()


def test_a_machine_of_unknown_memory_is_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("os.sysconf")
    assert results.machine()["memory_gib"] is None
