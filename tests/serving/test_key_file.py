"""The key file: rates and use are shared between processes and kept after SIGKILL."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from outrider.errors import ConfigError
from outrider.serving import key_file
from outrider.serving import keys as keys_module
from outrider.serving.keys import Keyring, add_key, remove_key
from outrider.serving.request import TooManyError

COUNT = """
import sys
from pathlib import Path
from outrider.serving.keys import Keyring
ring = Keyring(Path(sys.argv[1]))
key = ring.check(sys.argv[2])
done = 0
while done < int(sys.argv[3]):
    ring.count(key, 7)
    assert ring.fault is None, ring.fault
    done += 1
    print(done, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


def counting(path: Path, key: str, times: int) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", COUNT, str(path), key, str(times)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_use_is_kept_after_a_process_is_killed(path: Path) -> None:
    key = add_key(path, "alice", rate=None, priority="normal")
    with counting(path, key, 10**9) as killed, counting(path, key, 300) as other:
        assert killed.stdout is not None
        assert other.stdout is not None
        counted = 0
        while counted < 100:
            counted = int(killed.stdout.readline())
        killed.send_signal(signal.SIGKILL)
        counted = max([counted, *map(int, killed.stdout.read().split())])
        assert len(other.stdout.read().split()) == 300
    assert other.returncode == 0
    ring = Keyring(path)
    used = ring.used(ring.check(key))
    ring.close()
    assert 7 * (counted + 300) <= used <= 7 * (counted + 301)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_servers_share_the_rate_and_the_use(path: Path) -> None:
    secret = add_key(path, "bob", rate=3, priority="low")
    rings = [Keyring(path), Keyring(path)]
    for ring in (rings[0], rings[1], rings[0]):
        key = ring.check(secret)
    with pytest.raises(TooManyError, match="3 requests per minute"):
        rings[1].check(secret)
    for ring in rings:
        ring.count(key, 5)
    assert [ring.used(key) for ring in rings] == [10, 10]
    for ring in rings:
        ring.close()


def test_use_is_counted_by_month(path: Path, monkeypatch) -> None:
    secret = add_key(path, "alice", rate=None, priority="normal")
    ring = Keyring(path)
    key = ring.check(secret)
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((2026, 11, *[0] * 7)))
    ring.count(key, 5)
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((2026, 12, *[0] * 7)))
    assert ring.used(key) == 0
    ring.count(key, 6)
    assert ring.used(key) == 6
    ring.close()


def test_use_is_stored_later_while_the_file_is_locked(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(key_file, "BUSY", 0.01)
    secret = add_key(path, "alice", rate=None, priority="normal")
    ring = Keyring(path)
    key = ring.check(secret)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        ring.count(key, 5)
        assert "is locked" in str(ring.fault)
        assert ring.used(key) == 5
        other.execute("ROLLBACK")
    monkeypatch.setattr(keys_module, "FRESH", 0.0)
    assert ring.fault is None
    ring.count(key, 6)
    ring.close()
    again = Keyring(path)
    assert again.used(key) == 11
    again.close()


def test_a_json_file_is_imported(path: Path) -> None:
    secret = add_key(path, "alice", rate=60, priority="high")
    ring = Keyring(path)
    key = ring.check(secret)
    ring.close()
    old = path.with_name("keys.json")
    old.write_text(json.dumps({"keys": [key.model_dump()]}))
    ring = Keyring(old)
    assert ring.check(secret) == key
    assert old.read_bytes().startswith(b"SQLite format 3")
    copy = old.with_name("keys.json.imported")
    assert json.loads(copy.read_text()) == {"keys": [key.model_dump()]}
    assert (old.stat().st_mode | copy.stat().st_mode) & 0o077 == 0
    ring.close()
    other = add_key(old, "bob", rate=None, priority="low")
    remove_key(old, "alice")
    ring = Keyring(old)
    assert ring.check(other).name == "bob"
    assert ring._keys[1:] == []
    ring.close()


def test_a_new_file_ignores_the_log_of_a_removed_one(path: Path) -> None:
    secret = add_key(path, "alice", rate=None, priority="normal")
    ring = Keyring(path)
    ring.count(ring.check(secret), 5)
    log = path.with_name("keys.db-wal")
    kept = log.read_bytes()
    ring.close()
    path.unlink()
    log.write_bytes(kept)
    add_key(path, "bob", rate=None, priority="normal")
    ring = Keyring(path)
    assert [key.name for key in ring._keys] == ["bob"]
    ring.close()


def test_another_database_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE dogs (name TEXT)")
    with pytest.raises(ConfigError, match=r"--keys: .*keys\.db: is no key file"):
        Keyring(path)


def test_usage_is_reported_by_key(serve, translator: Path, path: Path) -> None:
    keys = [add_key(path, name, rate=None, priority="normal") for name in ("alice", "bob")]
    url = serve(f"en-de={translator}", keyring=Keyring(path))
    headers = [{"Authorization": f"DeepL-Auth-Key {key}"} for key in keys]
    body = {"q": "two men", "source": "en", "target": "de"}
    assert httpx.post(f"{url}/translate", json=body, headers=headers[0]).status_code == 200
    deepl = {"text": ["<p>two men</p>", "play"], "target_lang": "DE", "tag_handling": "html"}
    assert httpx.post(f"{url}/v2/translate", json=deepl, headers=headers[0]).status_code == 200
    wrong = deepl | {"target_lang": "JA"}
    assert httpx.post(f"{url}/v2/translate", json=wrong, headers=headers[0]).status_code == 400
    used = [httpx.get(f"{url}/v2/usage", headers=one).json() for one in headers]
    assert [one["character_count"] for one in used] == [7 + 14 + 4, 0]
