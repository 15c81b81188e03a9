"""`outrider serve` as a process: its address, SIGTERM, and errors at the start."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from outrider.cli.main import run
from outrider.serving.run import bind

TEXT = "a small dog runs. two men play! where is the station?"


class Process:
    """A server in a new process."""

    def __init__(self, log: Path, *arguments: object) -> None:
        line = [sys.executable, "-m", "outrider", "serve", *map(str, arguments), "--port", "0"]
        self.log = log
        with log.open("w") as file:
            self.popen = subprocess.Popen(line, stderr=file)
        while "startup complete" not in log.read_text():
            assert self.popen.poll() is None, log.read_text()
            time.sleep(0.05)
        (self.url,) = re.findall(r"listening at (\S+)", log.read_text())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def begin(*arguments: object) -> Process:
        made.append(Process(tmp_path / f"log{len(made)}", *arguments))
        return made[-1]

    yield begin
    for one in made:
        if one.popen.poll() is None:
            one.popen.kill()
        one.popen.wait()


@pytest.mark.slow
def test_sigterm_lets_requests_in_flight_finish(start, translator, offline) -> None:
    server = start(f"en-de={translator}", "--no-guard")
    long = " ".join([TEXT] * 20)
    answers: list[httpx.Response] = []

    def ask() -> None:
        body = {"q": long, "source": "en", "target": "de"}
        answers.append(httpx.post(f"{server.url}/translate", json=body, timeout=60))

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    metric = 'outrider_queue_requests{model="en-de"} 3.0'
    while metric not in httpx.get(f"{server.url}/metrics").text:
        assert not answers, "they were too quick for this test"
    os.kill(server.popen.pid, signal.SIGTERM)
    for client in clients:
        client.join()
    assert [one.status_code for one in answers] == [200] * 3
    assert {one.json()["translatedText"] for one in answers} == {offline.translate(long)}
    assert server.popen.wait(30) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


@pytest.mark.slow
def test_the_native_backend_does_not_load_torch(start, translator) -> None:
    pytest.importorskip("outrider_native")
    server = start(f"en-de={translator}", "--backend", "native")
    maps = Path(f"/proc/{server.popen.pid}/maps")
    if not maps.exists():
        pytest.skip("this system does not tell what a process has loaded")
    body = {"q": TEXT, "source": "en", "target": "de"}
    assert httpx.post(f"{server.url}/translate", json=body).status_code == 200
    assert "libtorch" not in maps.read_text()


def test_unknown_languages_are_reported_at_the_start(start, translator) -> None:
    server = start(translator, "--lazy")
    assert "tiny: its languages are unknown; omit source and target" in server.log.read_text()
    assert httpx.get(f"{server.url}/languages").json()[0]["code"] == "auto"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere",), "nowhere: no such folder"),
        (("{model}", "{model}"), "tiny: two models have this name"),
        (("en-de={model}", "en-de={model}"), "en-de: two models have this name"),
        (("en-de={model}", "--memory", "1"), "memory: en-de alone takes"),
        (("en-de={model}", "--memory", "x"), "expected bytes such as 512M or 2G"),
        (("en-de={model}", "--keys", "nowhere.json"), "make one with outrider key FILE NAME"),
        (("en-de={model}", "--host", "256.0.0.1"), "--port: cannot listen at 256.0.0.1"),
        (("en-de={model}", "--rows", "0"), "--rows"),
        ((), "MODEL"),
    ],
    ids=str,
)
def test_errors_are_reported_before_loading(
    translator: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    line = [one.format(model=translator) for one in arguments]
    assert run(["serve", *line, "--port", "0"]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert "Traceback" not in message


def test_a_port_in_use(translator: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        assert run(["serve", f"en-de={translator}", "--port", port]) == 2
    assert "Address already in use" in capsys.readouterr().err
