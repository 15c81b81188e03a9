"""Keep glibc from giving memory back to the kernel between training steps.

A step allocates and frees the same large tensors over and over. By default glibc maps each of them
anew and trims its heap after, so the kernel zeroes the same pages thousands of times: a quarter of
the step on a CPU. Told to keep memory, it hands the same warm pages out again.

Steps of other shapes leave holes in such a heap. `return_memory` gives them back now and then, at
moments that are slow anyway.
"""

import ctypes
import platform

__all__ = ["keep_memory", "return_memory"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # from malloc.h
_MIB = 2**20


def keep_memory() -> bool:
    """Tell glibc to serve blocks up to 1 GiB from a heap it never trims; True if it agreed."""
    if not _has_glibc():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    # Some releases refuse a threshold above half a thread heap, 32 MiB.
    mapped = mallopt(_M_MMAP_THRESHOLD, 1024 * _MIB) or mallopt(_M_MMAP_THRESHOLD, 32 * _MIB)
    trimmed = mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    padded = mallopt(_M_TOP_PAD, 64 * _MIB)
    return bool(mapped and trimmed and padded)


def return_memory() -> None:
    """Give the kernel back every page of the heap that holds nothing."""
    if _has_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def _has_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"
