"""Freed memory is returned to the system."""

import subprocess
import sys

import pytest

HOARD = """
import ctypes, sys
from outrider.serving.limits import limit_malloc_threshold

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]


def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096


if sys.argv[1] == "back" and not limit_malloc_threshold():
    sys.exit(3)
libc.free(libc.malloc(16 << 20))  # from now on glibc would keep what is smaller
before, states = resident(), []
for _ in range(64):
    states.append(libc.malloc(1 << 20))
    ctypes.memset(states[-1], 1, 1 << 20)
    libc.malloc(32 << 10)  # stays, and keeps the heap from shrinking
for state in states:
    libc.free(state)
print(resident() - before)
"""


def left(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", HOARD, how], capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip("this C library has no mallopt")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="about glibc")
def test_memory_of_finished_states_is_returned() -> None:
    assert left("back") < 8 << 20
    assert left("kept") > 32 << 20, "without it there would be nothing to do"
