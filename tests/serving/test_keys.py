"""Keys: every route to a model requires one, and no output reveals one."""

import io
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import openai
import pytest
from libretranslatepy import LibreTranslateAPI

from outrider.cli.main import run
from outrider.errors import ConfigError
from outrider.serving import keys as keys_module
from outrider.serving.engine import Engine
from outrider.serving.guard import OPEN
from outrider.serving.keys import Keyring, add_key, remove_key
from outrider.serving.log import start_logging
from outrider.serving.registry import read_spec
from outrider.serving.request import BrokenError, TooManyError, UnauthorisedError
from tests.helpers.served import serving

BODY = {"q": "two men", "source": "en", "target": "de"}
REFUSED = {"/translate": 403, "/detect": 403, "/suggest": 403}
"""Status of a refused key by path, where it is not 401."""
PREFIXES = {"/v2/": 403, "/v3/": 403, "/language/translate/v2": 400, "/download_file/": 404}
"""The same for all paths of an API."""
BODIES = {"/translate": BODY, "/detect": {"q": "two men"}}


@pytest.fixture
def ring(tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "keys.json"
    return path, add_key(path, "alice", rate=None, priority="normal")


@pytest.fixture
def locked(translator: Path, ring: tuple[Path, str]) -> Iterator[tuple[str, str, Engine]]:
    engine = Engine([read_spec(f"en-de={translator}")])
    with serving(engine, keyring=Keyring(ring[0])) as url:
        yield url, ring[1], engine


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_no_route_reaches_a_model_without_a_key(locked, monkeypatch) -> None:
    url, _, _ = locked
    reached = []
    monkeypatch.setattr(Engine, "admit", lambda *given, **named: reached.append(given))
    with httpx.Client(base_url=url) as client:
        paths = client.get("/openapi.json").json()["paths"]
        tried = 0
        for path, methods in paths.items():
            for method in methods:
                for headers in ({}, bearer("wrong"), {"X-API-Key": "wrong"}):
                    body = BODIES.get(path, {}) | {"api_key": "wrong" * bool(headers)}
                    answer = client.request(method, path, headers=headers, json=body)
                    tried += 1
                    own = [status for prefix, status in PREFIXES.items() if path.startswith(prefix)]
                    refused = own[0] if own else REFUSED.get(path, 401)
                    assert answer.status_code == (200 if path in OPEN else refused), (method, path)
        assert client.get("/nothing").status_code == 401
    assert tried > 20
    assert reached == []


def test_a_key_is_accepted_in_every_place(locked, offline) -> None:
    url, key, _ = locked
    for given in (
        {"headers": bearer(key), "json": BODY},
        {"headers": {"X-API-Key": key}, "json": BODY},
        {"params": {"api_key": key}, "json": BODY},
        {"json": BODY | {"api_key": key}},
        {"data": BODY | {"api_key": key}},
    ):
        answer = httpx.post(f"{url}/translate", **given)
        assert answer.json() == {"translatedText": offline.translate("two men")}


def test_keys_sent_by_published_clients(locked, offline) -> None:
    url, key, _ = locked
    assert LibreTranslateAPI(url, key).translate("two men", "en", "de") == offline.translate(
        "two men"
    )
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    said = client.completions.create(model="en-de", prompt="two men").choices[0].text
    assert said == offline.translate("two men")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list()


def test_nothing_secret_in_log_or_metrics(locked) -> None:
    url, key, _ = locked
    loggers = [logging.getLogger(name) for name in ("outrider", "uvicorn")]
    before = [(one.handlers, one.propagate, one.level) for one in loggers]
    log = io.StringIO()
    start_logging(log)
    try:
        secret = "astonishing"
        for given in (
            {"json": BODY | {"q": secret, "api_key": key}},
            {"json": BODY | {"q": secret, "api_key": "wrong-key"}},
            {"json": BODY | {"q": secret, "source": secret}, "headers": bearer(key)},
            {"content": b'{"q": "astonishing', "headers": bearer(key)},
            {"params": {"api_key": key, "q": secret}, "json": BODY},
        ):
            httpx.post(f"{url}/translate", **given)
        httpx.get(f"{url}/{secret}", headers=bearer(key))
        metrics = httpx.get(f"{url}/metrics").text
    finally:
        for one, (handlers, propagate, level) in zip(loggers, before, strict=True):
            one.handlers, one.propagate = handlers, propagate
            one.setLevel(level)
    text = log.getvalue()
    for word in (secret, key, "wrong-key", keys_module._digest(key)):
        assert word not in text
        assert word not in metrics
    lines = [json.loads(line) for line in text.splitlines()]
    assert [one["status"] for one in lines] == [200, 403, 400, 400, 200, 404]
    assert lines[0] | {"time": 0, "seconds": 0} == {
        **{"time": 0, "level": "info", "event": "request", "method": "POST", "seconds": 0},
        **{"route": "/translate", "status": 200, "key": "alice", "model": "en-de"},
        **{"pair": "en-de", "characters": len(secret), "bytes": lines[0]["bytes"]},
    }
    assert 'outrider_requests_total{route="/translate",status="200"} 2.0' in metrics
    assert 'outrider_tokens_total{model="en-de"}' in metrics
    labels = '{api="LibreTranslate",pair="en-de"}'
    assert f"outrider_answered_total{labels} 2.0" in metrics
    assert f"outrider_characters_total{labels} {float(len(secret) + len(BODY['q']))}" in metrics


def test_only_hashes_are_stored(ring) -> None:
    path, key = ring
    assert key.encode() not in path.read_bytes()
    assert len(key) > 40
    assert path.stat().st_mode & 0o077 == 0


def test_a_key_has_a_rate_limit(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add_key(path, "bob", rate=3, priority="low")
    ring = Keyring(path)
    for _ in range(3):
        assert ring.check(key).name == "bob"
    with pytest.raises(TooManyError, match="3 requests per minute") as refused:
        ring.check(key)
    assert 1 <= refused.value.retry_after <= 20
    assert refused.value.status == 429


def test_requests_over_the_rate_are_refused(translator: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add_key(path, "bob", rate=1, priority="normal")
    with serving(Engine([read_spec(f"en-de={translator}")]), keyring=Keyring(path)) as url:
        codes = [httpx.post(f"{url}/translate", json=BODY, headers=bearer(key)) for _ in range(2)]
    assert [one.status_code for one in codes] == [200, 429]
    assert 1 <= int(codes[1].headers["Retry-After"]) <= 60


def test_a_key_that_is_removed_stops_working(ring, monkeypatch) -> None:
    path, key = ring
    monkeypatch.setattr(keys_module, "FRESH", 0.0)
    ring_ = Keyring(path)
    ring_.check(key)
    other = add_key(path, "bob", rate=None, priority="high")
    assert ring_.check(other).priority == "high"
    remove_key(path, "alice")
    with pytest.raises(UnauthorisedError, match="is not known"):
        ring_.check(key)


def test_wrong_keys_take_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    known = [add_key(path, f"user {n}", rate=None, priority="normal") for n in range(20)]
    ring = Keyring(path)

    def seconds(key: str) -> float:
        began = time.thread_time()
        for _ in range(50):
            with suppress(UnauthorisedError):
                ring.check(key)
        return time.thread_time() - began

    tried = {"far": "x" * len(known[0]), "first": known[0][:-1] + "!", "last": known[-1][:-1] + "!"}
    turns = [{name: seconds(key) for name, key in tried.items()} for _ in range(40)]
    best = {name: min(turn[name] for turn in turns) for name in tried}
    assert max(best.values()) < 1.5 * min(best.values()), best


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.json"
    assert run(["key", str(path), "carol", "--rate", "60", "--priority", "high"]) == 0
    key = capsys.readouterr().out.strip()
    found = Keyring(path).check(key)
    assert (found.name, found.rate, found.priority) == ("carol", 60.0, "high")
    assert run(["key", str(path), "carol"]) == 2
    assert "remove it first, with --remove" in capsys.readouterr().err
    assert run(["key", str(path), "dave", "--rate", "-1"]) == 2
    assert "--rate" in capsys.readouterr().err
    assert run(["key", str(path), "carol", "--remove"]) == 0
    assert run(["key", str(path), "carol", "--remove"]) == 2
    assert "has no key of 'carol'" in capsys.readouterr().err


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_text(""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "not text": lambda path: path.write_bytes(b"\xff\xfe\0"),
    "another object": lambda path: path.write_text("{}"),
    "a folder": _folder,
    "a pipe": _pipe,
    "a loop": lambda path: (path.unlink(), path.symlink_to(path)),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("damage", DAMAGE)
def test_unreadable_keys_stay_valid_for_a_minute(ring, caplog, monkeypatch, damage) -> None:
    monkeypatch.setattr(logging.getLogger("outrider"), "propagate", True)
    path, key = ring
    good, clock = path.read_bytes(), Clock()
    keyring = Keyring(path, clock)
    DAMAGE[damage](path)
    for _ in range(20):  # in pairs: the second check follows within a second
        clock.now += 1.45
        for _ in range(2):
            assert keyring.check(key).name == "alice"
            with pytest.raises(UnauthorisedError):
                keyring.check("wrong")
            assert str(path) in keyring.fault
            assert not keyring.expired
            clock.now += 0.02
    clock.now += keys_module.GRACE
    for given in (key, "wrong", None):
        with pytest.raises(BrokenError, match="the key file cannot be read; see /ready") as refused:
            keyring.check(given)
        assert refused.value.status == 503
    assert len([line for line in caplog.messages if str(path) in line]) == 1
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    path.write_bytes(good)
    clock.now += keys_module.FRESH
    assert keyring.check(key).name == "alice"
    assert keyring.fault is None
    keyring.close()


def test_a_valid_file_without_keys_revokes_all(ring) -> None:
    path, key = ring
    clock = Clock()
    keyring = Keyring(path, clock)
    path.write_text('{"keys": []}')
    clock.now += keys_module.FRESH
    with pytest.raises(UnauthorisedError, match="is not known"):
        keyring.check(key)
    assert keyring.fault is None


def test_ready_gives_the_reason_for_unreadable_keys(serve, translator: Path, ring) -> None:
    path, key = ring
    clock = Clock()
    url = serve(f"en-de={translator}", keyring=Keyring(path, clock))
    _pipe(path)
    clock.now += keys_module.FRESH
    assert httpx.post(f"{url}/translate", json=BODY, headers=bearer(key)).status_code == 200
    ready = httpx.get(f"{url}/ready")
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    assert "keys.json: is not a regular file" in ready.json()["reason"]
    clock.now += keys_module.GRACE
    for given in ({"headers": bearer(key), "json": BODY}, {"json": BODY | {"api_key": key}}):
        answer = httpx.post(f"{url}/translate", **given)
        assert answer.status_code == 503
        assert "cannot be read" in answer.json()["error"]
    ready = httpx.get(f"{url}/ready")
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    assert "keys.json: is not a regular file" in ready.json()["reason"]
    assert httpx.get(f"{url}/health").status_code == 200


@pytest.mark.parametrize(
    "text", ["", "[]", '{"keys": 1}', '{"keys": [{"name": "a", "sha256": "b"}]}']
)
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"--keys: .*keys\.json"):
        Keyring(path)
