"""Hostile lists and servers: one error message each, and no folder that looks complete."""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from outrider.catalog import Catalog, Pair, find_model, web
from outrider.catalog.find import INDEX_BYTES
from outrider.catalog.store import list_installed
from outrider.catalog.web import RefusedError, UnreachableError, Web
from outrider.errors import ConfigError, ModelError, OutriderError, ResourceError
from tests.helpers.model_server import ModelServer, endless, redirect

DE_EN = Pair("de", "en")
MODEL = "/models/de-en/tiny/model.xxyy.intgemm.alphas.bin.gz"
VOCAB = "/models/de-en/tiny/vocab.xxyy.spm.gz"
PULL = """
import sys
from outrider.cli.main import run
sys.exit(run(["pull", "de-en", "--index", sys.argv[1]]))
"""


def refused(index: str, cache: Path, match: str, kind: type[OutriderError] = ModelError) -> None:
    with pytest.raises(kind, match=match) as caught:
        find_model("de-en", index=index)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    assert list_installed(cache) == []


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "models/../../secret",
        "models/%2e%2e/secret",
        "/etc/passwd",
        "//evil.example/model",
        "https://evil.example/model.bin",
        "file:///etc/passwd",
        "models\\..\\secret",
        "models/a\r\nHost: b",
        "",
        7,
    ],
)
def test_paths_stay_below_the_base(
    server: ModelServer, tiny: Path, cache: Path, tmp_path: Path, path: Any
) -> None:
    row = server.entry(tiny)
    row["files"]["vocab"]["path"] = path
    index = server.add_registry({"de-en": [row]})
    refused(index, cache, "^de-en: no list has this pair", ConfigError)
    found = Catalog(index)
    said: list[str] = []
    found.say = said.append
    assert list(found.entries()) == []
    assert "path" in said[0]
    folder = tmp_path / "list"
    folder.mkdir()
    (folder / "models.json").write_text(json.dumps({"models": {"de-en": [row]}}))
    refused(str(folder), cache, "^de-en: no list has this pair", ConfigError)
    assert [path for path, _ in server.requests] == ["/models.json"] * 2


@pytest.mark.parametrize("name", ["model.en.bin", ".vocab.spm", "..spm", "vocab.%2fetc.spm", "x"])
def test_files_are_named_by_their_role(
    server: ModelServer, tiny: Path, cache: Path, name: str
) -> None:
    row = server.entry(tiny)
    server.files[f"/{name.replace('%2f', '/')}"] = server.files[VOCAB]
    row["files"]["vocab"]["path"] = name
    (found,) = [
        file.name
        for entry in Catalog(server.add_registry({"de-en": [row]})).entries()
        for file in entry.files
        if not file.name.startswith("model.")
    ]
    assert found == "vocab.deen.spm"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"uncompressedHash": "0" * 64}, "has the sha256 .* the list states 0000"),
        ({"uncompressedSize": 10}, "is larger than the"),
        ({"uncompressedSize": 10**8}, "has 2[0-9],[0-9]* bytes, the list states 100,000,000"),
    ],
)
def test_wrong_checksums_and_sizes(
    server: ModelServer, tiny: Path, cache: Path, changes: dict[str, Any], match: str
) -> None:
    row = server.entry(tiny)
    row["files"]["model"] |= changes
    refused(server.add_registry({"de-en": [row]}), cache, match)
    assert not list(cache.rglob("model*"))


@pytest.mark.parametrize("size", [0, -1, 10**12, "12", 1.5, True])
def test_invalid_sizes(server: ModelServer, tiny: Path, cache: Path, size: Any) -> None:
    row = server.entry(tiny)
    row["files"]["model"]["uncompressedSize"] = size
    refused(server.add_registry({"de-en": [row]}), cache, "no list has this pair", ConfigError)


def zipped_zeros(size: int) -> bytes:
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=9) as file:
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return raw.getvalue()


def zstd_zeros(size: int) -> bytes:
    zstandard = pytest.importorskip("zstandard", reason="needs outrider[serve]")
    packer = zstandard.ZstdCompressor().compressobj()
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


@pytest.mark.parametrize("compress", [zipped_zeros, zstd_zeros])
@pytest.mark.parametrize("path", [MODEL, VOCAB])
def test_decompression_bombs(
    server: ModelServer, tiny: Path, cache: Path, path: str, compress: Callable[[int], bytes]
) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    server.files[path] = compress(64 << 20)
    refused(index, cache, "is larger than the stated or allowed size of")
    assert sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) < 1 << 20


@pytest.mark.parametrize("raw", [b"\x1f\x8b\x08 not gzip", b"\x28\xb5\x2f\xfd not zstd", b"short"])
def test_damaged_archives(server: ModelServer, tiny: Path, cache: Path, raw: bytes) -> None:
    if raw[:1] == b"\x28":
        pytest.importorskip("zstandard", reason="needs outrider[serve]")
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    server.files[MODEL] = raw
    refused(index, cache, "cannot be decompressed|the list states")


def test_more_bytes_than_are_allowed(server: ModelServer, tiny: Path, cache: Path) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    server.special[MODEL] = endless(64 << 20)
    refused(index, cache, r"is larger than the .* bytes that are allowed")


def test_a_broken_connection_is_continued(server: ModelServer, tiny: Path, cache: Path) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    server.cut[MODEL] = 1000
    assert find_model("de-en", index=index) is not None
    assert [wanted for path, wanted in server.requests if path == MODEL] == ["", "bytes=1000-"]


def test_a_truncated_download_is_continued_by_the_next_run(
    server: ModelServer, tiny: Path, cache: Path
) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    whole = server.files[MODEL]

    def cut(call: BaseHTTPRequestHandler) -> None:
        start = int(call.headers.get("Range", "bytes=0-")[6:-1])
        call.send_response(206 if start else 200)
        call.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        call.send_header("Content-Length", str(len(whole) - start))
        call.end_headers()
        call.wfile.write(whole[start : start + 100])
        call.close_connection = True

    server.special[MODEL] = cut
    refused(index, cache, "ended after 400 of .* 400 bytes are kept, and the same", ResourceError)
    del server.special[MODEL]
    server.requests.clear()
    assert find_model("de-en", index=index) is not None
    assert (MODEL, "bytes=400-") in server.requests
    assert not list(cache.rglob("*.partial"))


def test_partial_bytes_of_another_file_are_discarded(
    server: ModelServer, tiny: Path, cache: Path
) -> None:
    test_a_truncated_download_is_continued_by_the_next_run(server, tiny, cache)
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    Catalog(index).pull(DE_EN)
    good = server.files[MODEL]
    for kept in (b"x" * 300, good + b"more"):
        work = next(iter(cache.glob("de-en")))
        for path in (work / "tiny").iterdir():
            path.unlink()
        server.files[MODEL] = good[:100]
        server.cut[MODEL] = 50
        with pytest.raises(OutriderError):
            Catalog(index).pull(DE_EN)
        server.files[MODEL] = good
        (partial,) = work.glob(".tiny.*.partial")
        (partial / "model.xxyy.intgemm.alphas.bin.part").write_bytes(kept)
        assert Catalog(index).pull(DE_EN).is_intact()


def test_redirects_are_followed_five_times(server: ModelServer, tiny: Path, cache: Path) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    server.files["/moved"] = server.files.pop(MODEL)
    server.special[MODEL] = redirect("/moved")
    assert find_model("de-en", index=index) is not None


@pytest.mark.parametrize(
    ("place", "match"),
    [
        (MODEL, "redirects more than 5 times"),
        ("file:///etc/passwd", "is refused: only https is opened, and what --index names"),
        ("ftp://127.0.0.1/model", "only https is opened"),
        ("http://example.org/model", "only https is opened"),
        ("https://user:password@example.org/model", "only https is opened"),
        ("https://192.168.1.1/model", "192.168.1.1: is a private address, which only --index may"),
        ("https://10.0.0.1/model", "is a private address"),
        ("https://169.254.169.254/latest/meta-data", "is a private address"),
        ("https://[::1]/model", "is a private address"),
        ("https://[::ffff:10.0.0.1]/model", "is a private address"),
        ("https://localhost/model", "is a private address"),
        ("https://127.0.0.1:notaport/", "is not a URL"),
    ],
)
def test_refused_redirects(
    server: ModelServer, tiny: Path, cache: Path, place: str, match: str
) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    server.special[MODEL] = redirect(place)
    refused(index, cache, match)


def test_another_port_of_this_machine_is_refused(
    server: ModelServer, tiny: Path, cache: Path
) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    with ModelServer().running() as other:
        other.files["/secret"] = b"secret"
        server.special[MODEL] = redirect(f"{other.url}/secret")
        refused(index, cache, "only https is opened")
        server.files["/models.json"] = server.files["/models.json"].replace(
            server.url.encode(), other.url.encode()
        )
        refused(index, cache, "only https is opened")
        assert other.requests == []


def test_a_name_that_resolves_to_this_machine(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_is_public", lambda host, literal=False: literal)
    port = server.url.rpartition(":")[2]
    with (
        pytest.raises(RefusedError, match="is a private address"),
        Web().open(f"https://localhost:{port}/"),
    ):
        pass
    assert server.requests == []


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://example.org/x", "http://a:b@c/"])
def test_lists_at_refused_addresses(cache: Path, address: str) -> None:
    with pytest.raises(ModelError, match="only https is opened"):
        Catalog(address).pull(DE_EN)


def test_a_list_of_a_gigabyte_is_not_read(server: ModelServer, cache: Path) -> None:
    server.special["/models.json"] = endless(1 << 30)
    started = time.monotonic()
    refused(f"{server.url}/models.json", cache, f"is larger than {INDEX_BYTES >> 20} MiB; no list")
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (b"", "is not JSON"),
        (b"[]", "must hold one JSON object"),
        (b"{}", "models must hold one list"),
        (b'{"models": []}', "models must hold one list"),
        (b'{"models": {}, "baseUrl": "file:///etc"}', "baseUrl is 'file:///etc'"),
        (b'{"data": 1}', "404"),
        (b'{"models":' + b"[" * 5000, "nested|JSON"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_damaged_lists(server: ModelServer, cache: Path, raw: bytes, match: str) -> None:
    server.files["/models.json"] = raw
    refused(f"{server.url}/models.json", cache, match, OutriderError)


@pytest.mark.parametrize(
    "row", [None, 7, {}, {"files": []}, {"files": {}}, {"files": {"model": 1}}]
)
def test_damaged_entries_are_skipped(
    server: ModelServer, tiny: Path, cache: Path, row: Any
) -> None:
    index = server.add_registry({"xx-yy": [row], "de-en": [server.entry(tiny)]})
    assert find_model("de-en", index=index) is not None


def test_an_unreachable_server(cache: Path) -> None:
    with pytest.raises(UnreachableError, match="cannot be reached: Connection refused"):
        Catalog("http://127.0.0.1:9/models.json").pull(DE_EN)


def pulling(index: str, cache: Path) -> "subprocess.Popen[str]":
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "OUTRIDER_CACHE": str(cache.parent)}
    return subprocess.Popen(
        [sys.executable, "-c", PULL, index],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_two_processes_download_once(server: ModelServer, tiny: Path, cache: Path) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    whole = server.files[MODEL]

    def slow(call: BaseHTTPRequestHandler) -> None:
        call.send_response(200)
        call.send_header("Content-Length", str(len(whole)))
        call.end_headers()
        time.sleep(3)
        call.wfile.write(whole)

    server.special[MODEL] = slow
    both = [pulling(index, cache) for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert {out for out, _ in said} == {f"{cache / 'de-en' / 'tiny'}\n"}
    assert sum(path == MODEL for path, _ in server.requests) == 1
    assert any("another process downloads it; waiting" in err for _, err in said)


def test_a_killed_download_leaves_no_complete_folder(
    server: ModelServer, tiny: Path, cache: Path
) -> None:
    index = server.add_registry({"de-en": [server.entry(tiny)]})
    whole = server.files[MODEL]

    def stuck(call: BaseHTTPRequestHandler) -> None:
        call.send_response(200)
        call.send_header("Content-Length", str(len(whole)))
        call.end_headers()
        call.wfile.write(whole[:2000])
        call.wfile.flush()
        time.sleep(60)

    server.special[MODEL] = stuck
    process = pulling(index, cache)
    deadline = time.monotonic() + 60
    while not list(cache.rglob("*.part")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert list_installed(cache) == []
    assert not (cache / "de-en" / "tiny").exists()
    with pytest.raises(ConfigError, match=r"^--offline"):
        find_model("de-en", offline=True)
    del server.special[MODEL]
    folder = find_model("de-en", index=index)
    assert folder is not None
    assert list_installed(cache)[0].is_intact()
    assert not list(cache.rglob("*.partial"))
