"""The memory of one call of the native core does not grow with rows times vocabulary."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("outrider_native", reason="outrider-native is not installed")

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="this system does not tell what was reserved"
)

PREFILL = """
import re, torch
from tests.helpers import tiny
from tests.helpers.tensor_calls import native_calls
from outrider.torch.models import Drafter, DrafterConfig

words, length = 8000, 6000
model = tiny.language_model(vocab_size=words, hidden_size=32, position="none")
drafter = Drafter(DrafterConfig.for_target(model.config, rank=4)).bind(model).eval()
backend = native_calls(model, drafter=drafter, threads=2)
state = backend.encode([[]], capacity=length + 600, drafting=True)
peak = lambda: int(re.search(r"VmPeak:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
before = peak()
backend.extend(torch.randint(words, (1, length)), state, last=True)
prefill = peak() - before
backend.draft(torch.tensor([[3]]), state, 600)
print(prefill, peak() - before - prefill)
"""


def test_a_long_prompt_and_a_long_draft_take_little_memory() -> None:
    """Logits of 6000 rows over 8000 tokens would take 192 MB for each of two threads."""
    done = subprocess.run(
        [sys.executable, "-c", PREFILL],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    prefill, draft = (int(value) / 2**20 for value in done.stdout.split())
    assert prefill < 60, f"{prefill:.0f} MiB"
    assert draft < 60, f"{draft:.0f} MiB"
