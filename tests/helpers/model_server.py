"""A local server of models with the APIs of Mozilla's registry, Remote Settings and the Hub."""

import gzip
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], None]


class ModelServer:
    """Answers GET with `files`; paths in `special` are answered by functions."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.special: dict[str, Answer] = {}
        self.requests: list[tuple[str, str]] = []
        """Paths and their Range headers."""
        self.cut: dict[str, int] = {}
        """Bytes after which the next answer of a path ends."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, call: BaseHTTPRequestHandler) -> None:
        path, wanted = call.path, call.headers.get("Range", "")
        self.requests.append((path, wanted))
        if path in self.special:
            self.special[path](call)
            return
        body = self.files.get(path)
        if body is None:
            call.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if wanted and start >= len(body):
            call.send_error(416)
            return
        call.send_response(206 if wanted else 200)
        if wanted:
            call.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        call.send_header("Content-Length", str(len(body) - start))
        call.end_headers()
        cut = self.cut.pop(path, None)
        call.wfile.write(body[start : None if cut is None else start + cut])
        if cut is not None:
            call.close_connection = True

    @contextmanager
    def running(self) -> Iterator["ModelServer"]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()

    def add_registry(
        self, rows: dict[str, list[dict[str, Any]]], path: str = "/models.json"
    ) -> str:
        self.files[path] = json.dumps({"baseUrl": self.url, "models": rows}).encode()
        return f"{self.url}{path}"

    def add_records(self, rows: list[dict[str, Any]]) -> str:
        attachments = {"attachments": {"base_url": f"{self.url}/attachments/"}}
        self.files["/v1/"] = json.dumps({"capabilities": attachments}).encode()
        path = "/v1/buckets/main/collections/translations-models-v2/records"
        self.files[path] = json.dumps({"data": rows}).encode()
        return f"{self.url}{path}"

    def entry(self, folder: Path, pair: str = "de-en", **changes: Any) -> dict[str, Any]:
        """Serve the gzipped files of a Bergamot folder, and return their registry entry."""
        keys = {"model": "model", "lex": "lexicalShortlist", "vocab": "vocab"}
        keys |= {"srcvocab": "srcVocab", "trgvocab": "trgVocab"}
        source, _, target = pair.partition("-")
        entry: dict[str, Any] = {
            "architecture": "tiny",
            "releaseStatus": "Release",
            "sourceLanguage": source,
            "targetLanguage": target,
            "files": {},
        } | changes
        for path in sorted(folder.iterdir()):
            raw, role = path.read_bytes(), path.name.partition(".")[0]
            place = f"models/{pair}/{entry['architecture']}/{path.name}.gz"
            self.files[f"/{place}"] = gzip.compress(raw, 1)
            stated: dict[str, Any] = {"path": place}
            if role == "model":
                sha256 = hashlib.sha256(raw).hexdigest()
                stated |= {"uncompressedSize": len(raw), "uncompressedHash": sha256}
            entry["files"][keys[role]] = stated
        return entry

    def records(
        self, folder: Path, compress: Callable[[bytes], bytes], pair: str = "de-en", **changes: Any
    ) -> list[dict[str, Any]]:
        """Serve attachments of a Bergamot folder, and return their records."""
        source, _, target = pair.partition("-")
        rows = []
        for path in sorted(folder.iterdir()):
            raw = path.read_bytes()
            sent, place = compress(raw), f"main-workspace/{pair}/{path.name}.zst"
            self.files[f"/attachments/{place}"] = sent
            rows.append(
                {
                    "name": path.name,
                    "sourceLanguage": source,
                    "targetLanguage": target,
                    "architecture": "tiny",
                    "version": "3.0",
                    "fileType": path.name.partition(".")[0],
                    "decompressedSize": len(raw),
                    "decompressedHash": hashlib.sha256(raw).hexdigest(),
                    "filter_expression": "",
                    "attachment": {
                        "location": place,
                        "size": len(sent),
                        "hash": hashlib.sha256(sent).hexdigest(),
                    },
                }
                | changes
            )
        return rows


def redirect(place: str) -> Answer:
    """Answer with a redirect."""

    def answer(call: BaseHTTPRequestHandler) -> None:
        call.send_response(302)
        call.send_header("Location", place)
        call.send_header("Content-Length", "0")
        call.end_headers()

    return answer


def endless(size: int) -> Answer:
    """Answer with `size` bytes, without stating their number."""

    def answer(call: BaseHTTPRequestHandler) -> None:
        call.send_response(200)
        call.end_headers()
        call.close_connection = True
        for _ in range(size >> 20):
            call.wfile.write(b" " * (1 << 20))

    return answer
