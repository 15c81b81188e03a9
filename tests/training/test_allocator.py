"""glibc takes the settings and gives memory back when asked; elsewhere nothing is touched."""

import platform

import psutil
import pytest
import torch

from outrider.training.allocator import keep_memory, return_memory

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")


@glibc
def test_freed_memory_is_kept_until_it_is_returned() -> None:
    assert keep_memory()
    process = psutil.Process()
    before = process.memory_info().rss
    block, stopper = torch.ones(2**24), torch.ones(2**20)  # 64 MiB under something that stays
    del block
    kept = process.memory_info().rss
    return_memory()
    returned = process.memory_info().rss
    assert kept - before > 2**25
    assert kept - returned > 2**25
    assert stopper.sum() == 2**20


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_memory()
    return_memory()
