"""`deploy/nginx.conf` and `deploy/Caddyfile` in front of a server."""

import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from outrider.runtime import Translator
from outrider.serving.limits import Limits
from outrider.serving.run import configure
from tests.serving.conftest import Serve


@pytest.fixture
def deploy(repository: Path) -> Path:
    return repository / "deploy"


@contextmanager
def running(url: str, log: Path, *line: str) -> Iterator[None]:
    """Run a proxy until the test is over."""
    with log.open("wb") as file:
        process = subprocess.Popen(line, stdout=file, stderr=file)
    try:
        until = time.monotonic() + 30
        while True:
            with suppress(httpx.TransportError):
                httpx.get(f"{url}/health", verify=False, timeout=10)
                break
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, "the proxy does not answer"
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(10)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return bound.getsockname()[1]


Proxy = Callable[[str], str]


@pytest.fixture
def nginx(deploy: Path, tmp_path: Path) -> Iterator[Proxy]:
    program, openssl = shutil.which("nginx"), shutil.which("openssl")
    if program is None or openssl is None:
        pytest.skip("install nginx and openssl to test deploy/nginx.conf")
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    line = f"req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout {key} -out {certificate}"
    subprocess.run([openssl, *line.split()], check=True, capture_output=True)
    with ExitStack() as stack:

        def start(behind: str) -> str:
            url = f"https://127.0.0.1:{(port := free_port())}"
            text = (deploy / "nginx.conf").read_text()
            text = text.replace("listen 443", f"listen 127.0.0.1:{port}")
            text = text.replace("127.0.0.1:5000", behind.removeprefix("http://"))
            text = text.replace("/var/log/nginx/error.log", str(tmp_path / "log"))
            text = re.sub(r"/etc/ssl/\S+\.pem", str(certificate), text)
            text = re.sub(r"/etc/ssl/\S+\.key", str(key), text)
            kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            folders = "".join(f"{kind}_temp_path {tmp_path / kind};" for kind in kinds)
            config = tmp_path / "nginx.conf"
            config.write_text(
                f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/log; user root;"
                f" events {{}} http {{ {folders} {text} }}"
            )
            line = (program, "-p", str(tmp_path), "-c", str(config))
            stack.enter_context(running(url, tmp_path / "printed", *line))
            return url

        yield start


@pytest.fixture
def caddy(deploy: Path, tmp_path: Path) -> Iterator[Proxy]:
    program = shutil.which("caddy")
    if program is None:
        pytest.skip("install caddy to test deploy/Caddyfile")
    with ExitStack() as stack:

        def start(behind: str) -> str:
            url = f"http://127.0.0.1:{free_port()}"  # the name would need a certificate
            text = (deploy / "Caddyfile").read_text().replace("translate.example.org", url)
            text = text.replace("127.0.0.1:5000", behind.removeprefix("http://"))
            config = tmp_path / "Caddyfile"
            config.write_text(text.replace("{", "{\n\tadmin off", 1))
            line = (program, "run", "--config", str(config), "--adapter", "caddyfile")
            stack.enter_context(running(url, tmp_path / "printed", *line))
            return url

        yield start


@pytest.fixture(params=["nginx", "caddy"])
def proxy(request: pytest.FixtureRequest) -> Proxy:
    return request.getfixturevalue(request.param)


def figures(url: str) -> str:
    return httpx.get(f"{url}/metrics").text


def test_answers_and_refusals(
    proxy: Proxy, serve: Serve, translator: Path, offline: Translator
) -> None:
    direct = serve(f"en-de={translator}", limits=Limits(rows=1))
    with httpx.Client(base_url=proxy(direct), verify=False, timeout=60) as client:
        body = {"q": "two men", "source": "en", "target": "de"}
        wanted = {"translatedText": offline.translate("two men")}
        assert client.post("/translate", json=body).json() == wanted
        stream = {"model": "en-de", "prompt": "a dog runs. " * 1000, "stream": True}
        with client.stream("POST", "/v1/completions", json=stream) as answer:
            assert next(answer.iter_lines()).startswith("data: {")
        until = time.monotonic() + 30
        while 'outrider_cancelled_total{model="en-de"} 1.0' not in figures(direct):
            assert time.monotonic() < until, "the server learns that the client has gone"
            time.sleep(0.02)
        for _ in range(5):
            refused = client.post("/translate", json=body | {"q": "a" * 2_500_000})
            assert (refused.status_code, [*refused.json()]) == (413, ["error"])
        assert client.post("/translate", content=b"a" * 4_000_000).status_code == 413
        assert client.get("/metrics").status_code == 404


class Stream(BaseHTTPRequestHandler):
    """Sends an event, and another when the client has read the first one."""

    protocol_version = "HTTP/1.1"
    read = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"9\r\ndata: 1\n\n\r\n")
        second = b"2" if self.path == "/health" or self.read.wait(10) else b"late"
        self.wfile.write(b"%x\r\ndata: %b\n\n\r\n0\r\n\r\n" % (8 + len(second), second))

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_streams_are_not_buffered(proxy: Proxy) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stream)
    Stream.read.clear()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        url = proxy(f"http://127.0.0.1:{server.server_port}")
        with httpx.stream("GET", f"{url}/v1/completions", verify=False, timeout=60) as answer:
            events = (line for line in answer.iter_lines() if line)
            assert next(events) == "data: 1"
            Stream.read.set()
            assert [*events] == ["data: 2"]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_logs_hold_no_text_and_no_key(proxy: Proxy, tmp_path: Path) -> None:
    url = proxy(f"http://127.0.0.1:{free_port()}")  # no server
    query = {"q": "hidden text", "key": "hidden-key", "target": "de"}
    answer = httpx.get(f"{url}/language/translate/v2", params=query, verify=False)
    assert answer.status_code == 502
    logs = [tmp_path / name for name in ("printed", "log")]
    assert "hidden" not in "".join(path.read_text() for path in logs if path.exists())


def test_times_and_sizes_suit_the_server(deploy: Path) -> None:
    nginx, caddy = ((deploy / name).read_text() for name in ("nginx.conf", "Caddyfile"))
    sizes = re.findall(r"client_(?:max_body|body_buffer)_size (\d+)m;", nginx)
    assert len(sizes) == 2
    assert all(int(size) << 20 > Limits().body for size in sizes)
    waits = re.findall(r"(?:read|header)_timeout (\d+)s", nginx + caddy)
    assert len(waits) == 2
    assert all(int(seconds) > Limits().seconds for seconds in waits)
    idle = re.findall(r"keepalive(?:_timeout)? (\d+)s", nginx + caddy)
    assert len(idle) == 2
    closed = configure(FastAPI(), Limits()).timeout_keep_alive
    assert all(int(seconds) < closed for seconds in idle), "or requests meet a closed connection"
    assert "2 MiB" in nginx
    assert Limits().body == 2 << 20


@pytest.mark.parametrize("page", ["/", "/race", "/docs"])
def test_pages_may_be_below_a_path(url: str, page: str) -> None:
    links = re.findall(r'(?:href|src)="([^"]+)"', httpx.get(url + page).text)
    assert links
    assert not [link for link in links if link.startswith("/")]
