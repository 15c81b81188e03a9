"""OpenMP threads of PyTorch spin only briefly, so it stays usable beside busy processes."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

ASKED = "import outrider, torch; torch.ones(64, 64) @ torch.ones(64, 64)"


def displayed(**variables: str) -> str:
    """Return the OpenMP settings that a new process displays."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE", "OMP_NUM_THREADS": "2", **variables}
    done = subprocess.run(
        [sys.executable, "-c", ASKED], env=environment, capture_output=True, text=True, check=True
    )
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("PyTorch does not compute with GNU OpenMP here")
    return done.stderr


def test_threads_wait_without_spinning_for_milliseconds() -> None:
    """The default is 300,000 turns: decoding with two processes per core took ten times as long."""
    assert "GOMP_SPINCOUNT = '1000'" in displayed()


def test_settings_of_the_user_are_kept() -> None:
    assert "GOMP_SPINCOUNT = '7'" in displayed(GOMP_SPINCOUNT="7")
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in displayed(OMP_WAIT_POLICY="active")
    assert "GOMP_SPINCOUNT = '1000'" not in displayed(OMP_WAIT_POLICY="active")
