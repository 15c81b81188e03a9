"""`keep_memory` and `return_memory` with glibc, and no effect elsewhere."""

import platform
import subprocess
import sys

import pytest

from outrider.torch.training.memory import keep_memory, return_memory

MEASURE = """
import psutil, torch
from outrider.torch.training.memory import keep_memory, return_memory
assert keep_memory()
process = psutil.Process()
before = process.memory_info().rss
block, stopper = torch.ones(2**24), torch.ones(2**20)  # 64 MiB under something that stays
del block
kept = process.memory_info().rss
return_memory()
assert stopper.sum() == 2**20
print(kept - before, kept - process.memory_info().rss)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_freed_memory_is_kept_until_returned() -> None:
    # In a separate process: the heap of other tests would hide the effect.
    command = [sys.executable, "-c", MEASURE]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kept, returned = map(int, printed.split())
    assert kept > 2**25
    assert returned > 2**25


def test_other_systems_are_unaffected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_memory()
    return_memory()
