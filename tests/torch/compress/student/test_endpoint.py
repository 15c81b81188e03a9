"""A remote teacher: requests, stored answers and errors."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ConfigError, ResourceError
from outrider.torch.compress.student import endpoint
from outrider.torch.compress.student.endpoint import EndpointConfig, translate_remotely
from tests.helpers.chat_server import Answer, Server, said


def upper(body: dict[str, Any], _: int) -> tuple[int, Any]:
    return 200, said(body["messages"][0]["content"].rsplit("\n", 1)[1].upper())


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], Server]]:
    monkeypatch.setattr(endpoint, "MAX_WAIT", 0.01)
    servers: list[Server] = []

    def start(answer: Answer) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for one in servers:
        one.http.shutdown()
        one.http.server_close()


def ask(server: Server, tmp_path: Path, lines: list[str]) -> list[tuple[str, str]]:
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    config = EndpointConfig(url=server.url, model="big", at_once=3)
    files = translate_remotely(config, tmp_path / "in.txt", tmp_path / "out", progress=False)
    records = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return [(record["source"], record["target"]) for record in records]


def test_every_line_is_requested_once(
    serve: Callable[[Answer], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    monkeypatch.setattr(endpoint, "BLOCK", 4)
    lines = [f"line {n}" for n in range(10)]
    server = serve(upper)
    assert ask(server, tmp_path, lines) == [(line, line.upper()) for line in lines]
    assert {(one["model"], one["temperature"]) for one in server.asked} == {("big", 0)}
    assert {one["Authorization"] for one in server.headers} == {"Bearer sesame"}
    (tmp_path / "out" / "000001.jsonl").unlink()
    assert ask(server, tmp_path, lines) == [(line, line.upper()) for line in lines]
    assert len(server.asked) == 14, "what was there is not asked for again"
    assert not any("sesame" in path.read_text() for path in (tmp_path / "out").iterdir())


def test_busy_servers_are_retried(serve: Callable[[Answer], Server], tmp_path: Path) -> None:
    def answer(body: dict[str, Any], number: int) -> tuple[int, Any]:
        return (503, b"later") if number < 4 else upper(body, number)

    assert ask(serve(answer), tmp_path, ["a"]) == [("a", "A")]


def test_cut_and_empty_answers_are_dropped(
    serve: Callable[[Answer], Server], tmp_path: Path
) -> None:
    def answer(body: dict[str, Any], number: int) -> tuple[int, Any]:
        text = body["messages"][0]["content"][-1]
        return 200, said(
            {"a": "cut", "b": " ", "c": "two\nlines"}[text], "length" if text == "a" else "stop"
        )

    assert ask(serve(answer), tmp_path, ["a", "b", "c"]) == [("c", "two lines")]


@pytest.mark.parametrize(
    ("reply", "error", "word"),
    [
        ((401, b"no such key"), ResourceError, "answered 401: no such key"),
        ((503, b"always"), ResourceError, "answered 503: always"),
        ((200, b"[" * 100_000), ConfigError, r"teacher\.url: .* unknown response"),
        ((200, {"choices": []}), ConfigError, r"teacher\.url: .* unknown response"),
        ((200, {"choices": [{"message": {"content": 3}}]}), ConfigError, "unknown response"),
    ],
)
def test_wrong_settings_are_reported(
    serve: Callable[[Answer], Server],
    tmp_path: Path,
    reply: tuple[int, Any],
    error: type[Exception],
    word: str,
) -> None:
    with pytest.raises(error, match=word):
        ask(serve(lambda *_: reply), tmp_path, ["a"])
    assert not list((tmp_path / "out").iterdir())


def test_no_request_is_sent_after_an_error(
    serve: Callable[[Answer], Server], tmp_path: Path
) -> None:
    server = serve(lambda *_: (401, b"no"))
    with pytest.raises(ResourceError, match="answered 401"):
        ask(server, tmp_path, [f"line {n}" for n in range(200)])
    assert len(server.asked) < 100


def test_without_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_WAIT", 0.01)
    server = Server(upper)
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(ResourceError, match="is the server running"):
        ask(server, tmp_path, ["a"])


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"url": "ftp://x/v1"}, "expected an address"),
        ({"prompt": "translate"}, "{text} is missing"),
    ],
)
def test_wrong_settings_are_refused(values: dict[str, str], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        EndpointConfig.model_validate({"url": "http://x/v1", "model": "m", **values})
