"""Attacks on a server: each gives a normal response or an error, and the server keeps running."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.serving.engine import Engine
from outrider.serving.limits import Limits
from outrider.serving.registry import read_spec
from tests.helpers.served import serving

GOOD = {"q": "two men", "source": "en", "target": "de", "options": {"max_new_tokens": 4}}
COMPLETION = {"model": "text", "prompt": "two men", "max_tokens": 4}
CHAT = {"model": "text", "messages": [{"role": "user", "content": "a"}]}
PATHS = {"/translate": GOOD, "/detect": {"q": "two men"}, "/v1/completions": COMPLETION}
PATHS |= {"/v1/chat/completions": CHAT}
PAIR = {"from": "en", "to": "de"}
SERVICES: dict[str, dict[str, Any]] = {
    "/v2/translate": {"text": ["two men"], "target_lang": "DE", "source_lang": "EN"},
    "/language/translate/v2": {"q": ["two men"], "target": "de", "source": "en"},
    "/language/translate/v2/detect": {"q": ["two men"]},
    "/language/translate/v2/languages": {"target": "de"},
    "/imme": {"text_list": ["two men"], "target_lang": "de", "source_lang": "en"},
    "/kiss": PAIR | {"texts": ["two men"], "text": "play"},
    "/translate/batch": PAIR | {"texts": ["two men"], "html": True},
    "/translate/single": PAIR | {"text": "two men"},
    "/v2/languages": {"type": "target"},
    "/suggest": {"q": "two men"},
}
"""Good requests of other services' APIs; the last two have no schema of a body."""
KIND = {"Content-Type": "application/json"}
ALLOWED = {200, 400, 401, 403, 404, 405, 408, 413, 422, 429, 431, 503}


@pytest.fixture(scope="module")
def url(translator: Path, language_model: Path) -> Iterator[str]:
    limits = Limits(seconds=10, body_seconds=1, characters=5_000, new_tokens=64, body=1 << 20)
    specs = [read_spec(f"en-de={translator}"), read_spec(str(language_model))]
    with serving(Engine(specs, limits)) as address:
        yield address


@pytest.fixture(autouse=True)
def _still_answers(url: str) -> Iterator[None]:
    """After each attack the server answers the next request."""
    yield
    answer = httpx.post(f"{url}/translate", json=GOOD, timeout=20)
    assert answer.status_code == 200
    assert answer.json()["translatedText"]


def check(answer: httpx.Response) -> None:
    assert answer.status_code in ALLOWED, (answer.status_code, answer.text[:300])
    if answer.status_code >= 400:
        body = answer.json()
        message = body["error"] if "error" in body else body["message"]
        text = message if isinstance(message, str) else message["message"]
        assert text
        assert "\n" not in text
        assert len(text) < 600
        assert "Traceback" not in text


ABSURD: list[Any] = [
    *(None, True, -1, 0, 1.5, 10**9, 2**64, -(2**64), 10**400, 1e308, "", "x", "\0", "a" * 4000),
    *([], {}, [[]], [None], {"a": []}, "\u202e", "\ufeff", "</s><s><pad>", "𝕏" * 500),
]


@pytest.mark.parametrize("path", [*PATHS, *SERVICES][:-2])
def test_an_extreme_value_in_every_field(url: str, path: str) -> None:
    schema = httpx.get(f"{url}/openapi.json").json()
    place = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = place["$ref"].rsplit("/", 1)[-1]
    fields = list(schema["components"]["schemas"][name]["properties"])
    options = list(schema["components"]["schemas"]["Options"]["properties"])
    good = (PATHS | SERVICES)[path]
    with httpx.Client(base_url=url, timeout=20) as client:
        for value in ABSURD:
            for key in fields:
                check(client.post(path, content=_dump(good | {key: value}), headers=KIND))
            for key in options if "options" in fields else ():
                body = _dump(good | {"options": {key: value}})
                check(client.post(path, content=body, headers=KIND))


def _dump(values: Any) -> bytes:
    return json.dumps(values).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b"\xff\xfe",
        b'{"q": "\xff\xfe"}',
        b'{"q": "\\ud800", "source": "en", "target": "de"}',
        b'{"q": NaN, "source": Infinity}',
        b'{"q": 1e999}',
        b'{"q": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"q":' * 50_000,
        b'{"q": "a", "q": "b", "source": "en", "target": "de"}',
        b"\0" * 1000,
        b'{"\\u0000": 1}',
    ],
    ids=lambda body: repr(body[:24]),
)
@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_is_not_a_request(url: str, path: str, body: bytes) -> None:
    kinds = ["application/json", "application/x-www-form-urlencoded", "text/plain", "x"]
    for kind in (*kinds, "multipart/form-data", "multipart/form-data; boundary=0"):
        check(httpx.post(f"{url}{path}", content=body, headers={"Content-Type": kind}, timeout=20))


@pytest.mark.parametrize("path", ["/translate", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("key", ["\ud800", "a\nb", "\0", "x" * 5000, "é" * 500])
def test_an_unknown_key_that_the_error_repeats(url: str, path: str, key: str) -> None:
    body = _dump(PATHS[path] | {"options": {key: 1}})
    answer = httpx.post(f"{url}{path}", content=body, headers=KIND)
    assert answer.status_code == 400
    check(answer)


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, 10 << 20])
def test_a_huge_body(url: str, size: int) -> None:
    began = time.monotonic()
    head, tail = b'{"source": "en", "target": "de", "q": "', b'"}'
    body = head + b"a" * (size - len(head) - len(tail)) + tail
    answer = httpx.post(f"{url}/translate", content=body, headers=KIND)
    assert answer.status_code == 413
    check(answer)
    assert time.monotonic() - began < 5


def test_a_huge_body_without_a_length(url: str) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(160):
            yield b"a" * 65536

    answer = httpx.post(f"{url}/translate", content=parts())
    assert answer.status_code == 413


def test_a_client_that_sends_all_before_it_reads(url: str) -> None:
    """As proxies do; a closed connection with unread data would be reset."""
    with raw(url) as one:
        one.sendall(request(b"", length=3 << 20))
        for _ in range(3):
            time.sleep(0.05)
            one.sendall(b"a" * (1 << 20))
        answer = b"".join(iter(lambda: one.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"error"' in answer


BOMBS = {
    "marks": "a" + "\u0301" * 4900,
    "classes": "a" + "\u0301\u0316" * 2400,
    "hangul": "\u1100\u1161\u11a8" * 1600,
    "dots": "." * 4900,
    "stops": "a. " * 1600,
    "quotes": '"' * 4900,
    "brackets": "(" * 4900,
    "spaces": " " * 4900,
    "lines": "\n" * 4900,
    "one word": "a" * 4900,
    "emoji": "👨‍👩‍👧‍👦" * 600,
    "direction": "\u202e\u202d" * 2400,
    "tags": "<p>a</p>" * 600,
    "open tags": "<a '" * 1200,
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("form", ["text", "html"])
def test_a_text_that_is_slow_to_process(url: str, bomb: str, form: str) -> None:
    began = time.monotonic()
    body = GOOD | {"q": BOMBS[bomb], "format": form}
    check(httpx.post(f"{url}/translate", json=body, timeout=20))
    check(httpx.post(f"{url}/detect", json={"q": BOMBS[bomb]}, timeout=20))
    assert time.monotonic() - began < 12


def raw(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def request(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n"
    return head.encode() + b"Content-Type: application/json\r\n\r\n" + body


def test_clients_that_disconnect_after_sending(url: str) -> None:
    for _ in range(50):
        with raw(url) as one:
            one.sendall(request(_dump(GOOD | {"q": "two men play. " * 30})))


def test_clients_that_disconnect_while_sending(url: str) -> None:
    for text in (b"", b"P", b"POST /translate HTTP/1.1\r\n", request(b"{", 100)):
        with raw(url) as one:
            one.sendall(text)


def test_half_closed_sockets(url: str) -> None:
    for body in (b"{", _dump(GOOD)):
        with raw(url) as one:
            one.sendall(request(body, max(len(body), 20)))
            one.shutdown(socket.SHUT_WR)
            one.settimeout(10)
            while one.recv(65536):  # a response or none, but the connection ends
                pass


def test_a_body_sent_too_slowly(url: str) -> None:
    began = time.monotonic()
    with raw(url) as one:
        one.sendall(request(b"{", 1000))
        answer = one.recv(65536)
    assert b" 408 " in answer.split(b"\r\n")[0]
    assert time.monotonic() - began < 5


def test_headers_that_never_end(url: str) -> None:
    began = time.monotonic()
    with raw(url) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        one.settimeout(10)
        while one.recv(65536):
            pass
    assert time.monotonic() - began < 8


@pytest.mark.parametrize(
    "opening", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n", b"GET /health HTTP/1.1\r\n\r\nGET /h"]
)
def test_half_open_connections_are_limited_to_half_of_all(translator: Path, opening: bytes) -> None:
    limits = Limits(connections=16, body_seconds=60)
    with (
        serving(Engine([read_spec(f"en-de={translator}")], limits)) as address,
        ExitStack() as all_,
    ):
        many = [all_.enter_context(raw(address)) for _ in range(40)]
        for one in many:
            with suppress(ConnectionError):  # it is closed already
                one.sendall(opening)
        for _ in range(3):
            assert httpx.post(f"{address}/translate", json=GOOD, timeout=20).status_code == 200
        with httpx.Client(base_url=address) as client:  # a kept-alive connection is not half-open
            client.get("/health")
            more = [all_.enter_context(raw(address)) for _ in range(40)]
            (used,) = client._transport._pool.connections
            assert client.get("/health").status_code == 200
            assert client._transport._pool.connections == [used]
        assert sum(map(_is_open, [*many, *more])) <= 8


def _is_open(one: socket.socket) -> bool:
    one.settimeout(0.05)
    try:
        while one.recv(65536):
            pass
    except TimeoutError:
        return True
    except ConnectionError:
        pass
    return False


def test_a_client_that_does_not_read_its_stream(url: str) -> None:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        host, port = url.removeprefix("http://").split(":")
        one.connect((host, int(port)))
        # Many small events: more than the socket buffers hold.
        asked = {"stream": True, "prompt": ["two"] * 60, "n": 16, "temperature": 1.0}
        body = _dump(COMPLETION | asked | {"max_tokens": 60})
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        one.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        waiting = 'outrider_queue_requests{model="text"} '
        _wait_for(url, f"{waiting}1.0")
        _wait_for(url, f"{waiting}0.0")  # the server closed the connection and released the request
        one.settimeout(10)
        taken = b""
        with suppress(ConnectionError):
            while part := one.recv(65536):
                taken += part
    assert b" 200 " in taken[:20]
    assert b"[DONE]" not in taken


def _wait_for(url: str, figure: str) -> None:
    until = time.monotonic() + 40
    with httpx.Client(base_url=url, timeout=20) as client:
        while figure not in client.get("/metrics").text:
            assert time.monotonic() < until, figure
            time.sleep(0.02)


@pytest.mark.parametrize(
    "text",
    [
        b"\0" * 5000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
        b"GET /%00%ff%2e%2e/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ],
    ids=lambda text: repr(text[:40]),
)
def test_malformed_http(url: str, text: bytes) -> None:
    with raw(url) as one:
        try:
            one.sendall(text)
            one.settimeout(5)
            answer = one.recv(65536)
        except (ConnectionError, TimeoutError):
            return
        assert b" 500 " not in answer.split(b"\r\n")[0]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=40)
    | st.sampled_from(["en", "de", "auto", "text", "en-de", "html", "tandem", "beam", "user"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def client(translator: Path, language_model: Path) -> Iterator[httpx.Client]:
    """Its server waits for requests longer than that of `url`, as the machine may be busy."""
    limits = Limits(seconds=10, characters=5_000, new_tokens=64, body=1 << 20)
    specs = [read_spec(f"en-de={translator}"), read_spec(str(language_model))]
    soon = httpx.Limits(keepalive_expiry=1)  # before the server closes an idle connection
    with (
        serving(Engine(specs, limits)) as address,
        httpx.Client(base_url=address, timeout=20, limits=soon) as made,
    ):
        yield made


FUZZED = int(os.environ.get("OUTRIDER_FUZZED", "1000"))
"""Requests; more than a few thousand need `pytest --timeout 0`."""
FIELDS = sorted(
    {field for body in (PATHS | SERVICES).values() for field in body}
    | {"format", "alternatives", "n", "stop", "seed", "top_p", "stream_options", "deadline"}
    | {"split", "tag_handling", "split_sentences", "formality", "context", "show_billed_characters"}
)


@settings(max_examples=FUZZED, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_nearly_valid_requests(client: httpx.Client, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([*PATHS, *SERVICES]))
    body = dict((PATHS | SERVICES)[path])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.sampled_from(FIELDS))] = data.draw(JSON)
    how = data.draw(st.sampled_from(["json", "json", "json", "form", "query", "get"]))
    if how == "json":
        check(client.post(path, content=_dump(body), headers=KIND))
        return
    fields = {key: value if isinstance(value, list) else str(value) for key, value in body.items()}
    pairs = urlencode(fields, doseq=True)
    if how == "form":
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        check(client.post(path, content=pairs, headers=kind))
    else:
        check(client.request("GET" if how == "get" else "POST", f"{path}?{pairs}"))
