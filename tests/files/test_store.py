"""Local folders and object stores have the same interface; `tests/jobs` uses them."""

import hashlib
import io
import pickle
import re
from pathlib import Path
from uuid import uuid4

import pytest

from outrider.errors import ConfigError, DataError, ResourceError
from outrider.files import LocalFolder, Store, as_place, check_on_disk, open_store
from outrider.files import remote as remote_module


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    name = uuid4().hex
    return open_store(tmp_path / name if request.param == "disk" else f"memory://{name}")


def test_files_are_written_listed_read_and_removed(store: Store) -> None:
    assert not store.exists()
    with pytest.raises(DataError, match=re.escape(str(store))):
        store.names()
    store.make()
    store.make()
    with store.replacing("b.txt") as file:
        file.write("zwölf\n")
    store.write_json("a.json", {"rows": 1})
    assert store.exists()
    assert store.names() == ["a.json", "b.txt"]
    assert store.has("b.txt")
    assert not store.has("c.txt")
    assert store.read_json("a.json") == {"rows": 1}
    assert store.sha256("b.txt") == hashlib.sha256("zwölf\n".encode()).hexdigest()
    store.remove("a.json")
    store.remove("a.json")
    assert store.names() == ["b.txt"]
    assert store.each(store.has, ["b.txt", "a.json"]) == [True, False]


def test_the_checksum_covers_the_whole_file(store: Store) -> None:
    store.make()
    text = "ab\n" * 100_000
    with store.replacing("x") as file:
        file.write(text)
    with store.open("x") as reading:
        lines = io.BufferedReader(reading)
        assert lines.readline() == b"ab\n"
        assert reading.sha256() == hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(DataError, match=f"{re.escape(store.show('y'))}: "), store.open("y"):
        pass


def test_a_failed_write_keeps_the_old_file(store: Store) -> None:
    store.make()
    store.write_json("x", {"old": 1})

    def fail() -> None:
        with store.replacing("x") as file:
            file.write("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert store.read_json("x") == {"old": 1}


def test_invalid_json_gives_one_error_message(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.make()
    with store.replacing("x") as file:
        file.write("[1]")
    with pytest.raises(DataError, match="x: must hold one JSON object, not a list"):
        store.read_json("x")
    if not isinstance(store, LocalFolder):
        monkeypatch.setattr(remote_module, "JSON_BYTES", 2)
        with pytest.raises(DataError, match="x: is larger than"):
            store.read_json("x")


def test_a_partial_upload_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    store = open_store("memory://short")
    monkeypatch.setattr(MemoryFileSystem, "size", lambda *_: 1)
    sentence = r"memory://short/x: 1 of 3 bytes are uploaded; run again"
    with pytest.raises(ResourceError, match=sentence), store.replacing("x") as file:
        file.write("abc")


def test_paths_and_urls_are_distinguished(tmp_path: Path) -> None:
    assert as_place("s3://bucket/in/") == "s3://bucket/in"
    assert as_place("parts/en") == Path("parts/en")
    assert as_place("C:/parts") == Path("C:/parts")
    assert as_place(tmp_path) == tmp_path
    assert as_place((tmp_path / "a b").as_uri()) == tmp_path / "a b"
    check_on_disk("--out", tmp_path, "why")
    for url in ("s3://bucket/in", Path("s3://bucket/in")):
        with pytest.raises(ConfigError, match="--out: got a URL of s3, but why"):
            check_on_disk("--out", url, "why")


def test_a_store_is_pickled_as_its_url_and_printed_without_its_password() -> None:
    store = open_store("sftp://me:secret@host/in")
    assert pickle.loads(pickle.dumps(store)).place == store.place
    assert str(store) == "sftp://host/in"
    assert store.show("x") == "sftp://host/in/x"
