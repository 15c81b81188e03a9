"""`outrider serve --ray`: replicas give the library's text, and a killed replica is replaced."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from outrider.cli.main import run
from outrider.runtime import Translator

pytest.importorskip("ray", reason="needs outrider[ray]")

TEXT = "a small dog runs. two men play! where is the station?"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(
    translator: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, psutil.Process]]:
    log = tmp_path_factory.mktemp("replicas") / "log"
    model, place = f"en-de={translator}", ["--ray", "--replicas", "2", "--port", "0"]
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "outrider", "serve", model, *place],
            stderr=file,
            stdout=file,
            env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        )
    while not (found := re.findall(r"listening at (\S+)", log.read_text())):
        assert process.poll() is None, log.read_text()
        time.sleep(0.2)
    yield found[0], psutil.Process(process.pid)
    if process.poll() is None:
        process.terminate()
        process.wait()


def replicas(server: psutil.Process) -> list[psutil.Process]:
    """Return the processes that hold models."""
    return [one for one in psutil.process_iter() if _name(one).startswith("ray::ServeReplica")]


def _name(process: psutil.Process) -> str:
    try:
        return "".join(process.cmdline()[:1])
    except psutil.Error:
        return ""


def ask(url: str, text: str) -> httpx.Response:
    body = {"q": text, "source": "en", "target": "de"}
    return httpx.post(f"{url}/translate", json=body, timeout=60)


def test_a_killed_replica_is_replaced(server, offline) -> None:
    url, process = server
    assert isinstance(offline, Translator)
    long = " ".join([TEXT] * 40)
    expected = offline.translate(long)
    before = {one.pid for one in replicas(process)}
    assert len(before) == 2
    answers: list[httpx.Response] = []
    clients = [threading.Thread(target=lambda: answers.append(ask(url, long))) for _ in range(8)]
    for client in clients:
        client.start()
    time.sleep(0.1)
    os.kill(min(before), signal.SIGKILL)
    for client in clients:
        client.join()
    assert len(answers) == len(clients), "each is answered once"
    told = [one.json()["translatedText"] for one in answers if one.status_code == 200]
    assert told.count(expected) == len(told)
    assert told, "the other replica answers all the while"
    assert all(one.status_code >= 500 for one in answers if one.status_code != 200)
    while len({one.pid for one in replicas(process)} - {min(before)}) < 2:
        time.sleep(0.2)
    assert ask(url, TEXT).json()["translatedText"] == offline.translate(TEXT)


def test_sigterm_ends_all_processes(server) -> None:
    url, process = server
    children = process.children(recursive=True)
    process.terminate()
    assert process.wait(timeout=90) in (0, None)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    with pytest.raises(httpx.ConnectError):
        ask(url, TEXT)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--replicas", "2"], "--replicas: is for --ray"),
        (["--ray", "--replicas", "4-2"], "--replicas: got 4-2, expected the smaller"),
        (["--ray", "--replicas", "none"], "--replicas: got 'none', expected a number"),
    ],
)
def test_invalid_numbers_of_replicas(translator, given, message, capsys) -> None:
    assert run(["serve", f"en-de={translator}", *given, "--port", "0"]) != 0
    assert message in capsys.readouterr().err
