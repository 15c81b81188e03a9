"""A forked process has the memory of the native core but none of its threads."""

import multiprocessing
import os
import signal
import threading

import pytest
import torch

from tests.helpers import native_tiny

pytest.importorskip("outrider_native", reason="outrider-native is not installed")

from tests.helpers.tensor_calls import TensorCalls, native_calls

TOKENS_BT = torch.tensor([[0, 7, 8], [0, 9, 3]])
SECONDS = 10
"""Time limit of a child."""

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


def build() -> TensorCalls:
    model = native_tiny.build("marian")
    return native_calls(model, drafter=native_tiny.build_drafter(model), threads=3)


def run(backend: TensorCalls) -> tuple[list, list]:
    state = backend.encode([[4, 5, 1], [6, 1]], capacity=10, drafting=True)
    logits = backend.extend(TOKENS_BT, state)
    return logits.tolist(), backend.draft(TOKENS_BT[:, -1:], state, 3).tokens_BK.tolist()


def in_child(work) -> int:
    """Run `work` in a forked process; return its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # Python's would run after the call
        signal.alarm(SECONDS)
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def test_a_forked_child_computes_the_same() -> None:
    backend = build()
    expected = run(backend)
    assert in_child(lambda: run(backend) == expected) == 0
    assert run(backend) == expected  # the parent still works


def test_a_child_may_replace_the_model() -> None:
    backends = [build()]
    expected = run(backends[0])

    def replace() -> bool:
        del backends[0]
        return run(build()) == expected

    assert in_child(replace) == 0


def test_a_fork_during_a_call() -> None:
    """No child waits for a lock that another thread of the parent holds."""
    backend = build()
    expected = run(backend)
    done = threading.Event()

    def disturb() -> None:
        while not done.is_set():
            run(backend)

    threads = [threading.Thread(target=disturb) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        codes = [in_child(lambda: run(backend) == expected) for _ in range(20)]
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert codes == [0] * 20


def test_workers_of_a_forked_pool_compute() -> None:
    backend = build()
    expected = run(backend)
    context = multiprocessing.get_context("fork")
    inbox = context.Queue()
    worker = context.Process(target=lambda: inbox.put(run(backend)))
    worker.start()
    try:
        assert inbox.get(timeout=SECONDS) == expected
    finally:
        worker.join(SECONDS)
        worker.kill()
