"""Settings of every test: fixed seeds, one thread, no network, uninitialised memory is NaN."""

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Libraries read these when they are imported; processes that tests start inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests compare with float32; tests of the native core select it explicitly.
os.environ.setdefault("OUTRIDER_BACKEND", "torch")
os.environ["OUTRIDER_CACHE"] = "off"

import pytest
import torch
from hypothesis import settings

from tests.helpers import forked

NEEDS_LAB = [
    "tests/cli/test_show.py",
    "tests/runtime/test_memory.py",
    "tests/test_options.py",
    "tests/test_results_page.py",
    "tests/test_sources.py",
    "tests/torch/inspect/test_pattern.py",
    "tests/torch/nn/attention/test_add_an_attention.py",
    "tests/torch/nn/stack/test_reversible.py",
]
"""Tests of the product and its pages that use the laboratory; CI runs them after installing it."""
collect_ignore = NEEDS_LAB if find_spec("outrider_lab") is None else []

torch.set_num_threads(1)

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--random-models`, the number of models that `test_combinations.py` tests."""
    parser.addoption("--random-models", type=int, default=40, metavar="N")


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    """Seed torch, so that failures are reproducible; numpy and random always get a seed."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _uninitialised_memory_is_nan(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fill `torch.empty` with NaN, so that reading uninitialised memory fails.

    Not on a GPU: some kernels have no deterministic form and would raise.
    """
    torch.use_deterministic_algorithms(request.node.get_closest_marker("gpu") is None)
    yield
    torch.use_deterministic_algorithms(False)


DEVICES = ["cpu", *([pytest.param("cuda", marks=pytest.mark.gpu)] * torch.cuda.is_available())]


@pytest.fixture(scope="session", params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of a test: the CPU, and a GPU if available (`pytest -m gpu`)."""
    return torch.device(request.param)


@pytest.fixture
def on_device(device: torch.device) -> Iterator[None]:
    """Create the tensors and models of a test on `device` by default."""
    with device:
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    """Refuse connections to other machines; tests of several processes use loopback."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else ""
        if self.family != socket.AF_UNIX and host not in ("127.0.0.1", "::1", "localhost"):
            raise RuntimeError(f"a test tried to reach {address!r}; tests run without a network")
        connect(self, address)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the working tree."""
    return Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The folder of shared corpora, which are too large for the repository; skip without it."""
    folder = os.environ.get("OUTRIDER_DATA")
    if not folder:
        pytest.skip("set OUTRIDER_DATA to the folder of shared corpora to run this test")
    return Path(folder)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run one command line; returns its exit code, stdout and stderr."""
    from outrider.cli.main import run

    def invoke(*arguments: object) -> tuple[int, str, str]:
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


attacks: Counter[str] = Counter()
"""Number of commands and their seconds, here and in pytest-xdist's workers."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Count the commands of this process; a worker sends its counts to the controller."""
    attacks.update(commands=forked.tried, seconds=round(forked.seconds))
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["attacks"] = dict(attacks)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the counts of a worker."""
    attacks.update(getattr(node, "workeroutput", {}).get("attacks", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many commands were run."""
    if attacks["commands"]:
        told = f"{attacks['commands']} attacks in {attacks['seconds']} s of commands"
        terminalreporter.write_line(told)
