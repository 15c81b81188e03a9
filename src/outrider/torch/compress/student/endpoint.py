"""A remote teacher: any server with OpenAI's `/chat/completions`.

Sentences are sent in parallel. Answers are written in files of some hundred, each atomically, so a
resumed run requests only the missing ones.
"""

import http.client
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from outrider.config import Config
from outrider.data.progress import show_stages
from outrider.errors import ConfigError, ResourceError
from outrider.files import write_text

BLOCK = 256
"""Answers per file."""
TRIES, MAX_WAIT = 6, 60.0
"""Attempts per request, and the maximum seconds to wait in between."""
BUSY = (408, 409, 429, 500, 502, 503, 504)
LONGEST_ANSWER = 1 << 20


class EndpointConfig(Config):
    """A teacher behind an HTTP API."""

    url: str
    """Address up to `/v1`, such as `http://teacher.example/v1`."""
    model: str
    """Name of the model on the server."""
    prompt: str = "Translate into English. Answer with the translation alone.\n\n{text}"
    """Prompt; `{text}` is replaced by the sentence."""
    key: str = "OPENAI_API_KEY"
    """Environment variable of the API key, if the server needs one; the key is never stored."""
    at_once: int = Field(default=8, ge=1, le=1024)
    """Concurrent requests."""
    max_tokens: int = Field(default=512, ge=1)
    """Maximum tokens of an answer."""
    timeout: float = Field(default=120.0, gt=0)
    """Seconds to wait for an answer."""

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"got {url!r}, expected an address such as http://teacher.example/v1")
        return url.rstrip("/")

    @field_validator("prompt")
    @classmethod
    def _has_text(cls, prompt: str) -> str:
        if "{text}" not in prompt:
            raise ValueError("{text} is missing, which is replaced by the sentence")
        return prompt


def translate_remotely(
    config: EndpointConfig, sentences: Path, out: Path, *, progress: bool
) -> list[Path]:
    """Translate a file line by line with the server; return files of pairs (.jsonl)."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with sentences.open(encoding="utf-8") as lines:
        count = sum(1 for _ in lines)
    with (
        sentences.open(encoding="utf-8") as lines,
        _worker_pool(config.at_once) as pool,
        show_stages(progress) as stages,
    ):
        advance = stages.start("ask the teacher", count)
        for number, block in enumerate(_blocks(lines)):
            path = out / f"{number:06d}.jsonl"
            if not path.is_file():
                answers = list(pool.map(lambda text: _translate(config, text), block))
                records = (
                    json.dumps({"source": source, "target": target}, ensure_ascii=False)
                    for source, target in zip(block, answers, strict=True)
                    if target
                )
                write_text(path, "".join(f"{record}\n" for record in records))
            written.append(path)
            advance(len(block))
    return written


@contextmanager
def _worker_pool(at_once: int) -> Iterator[ThreadPoolExecutor]:
    """A thread pool that drops pending requests after an error or Ctrl-C."""
    pool = ThreadPoolExecutor(at_once)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _blocks(lines: Iterator[str]) -> Iterator[list[str]]:
    stripped = (line.rstrip("\n") for line in lines)
    while block := list(islice(stripped, BLOCK)):
        yield block


def _translate(config: EndpointConfig, text: str) -> str:
    """Return the answer on one line; retries while the server is busy."""
    for attempt in range(1, TRIES + 1):
        wait = min(MAX_WAIT, 2.0**attempt / 2)
        try:
            status, reply, retry_after = _post(config, text)
        except (OSError, http.client.HTTPException) as error:
            if attempt == TRIES:
                raise ResourceError(f"{config.url}: {error}; is the server running?") from error
        else:
            if status == 200:
                return " ".join(_content(config, reply).split())
            if status not in BUSY or attempt == TRIES:
                body = " ".join(reply.decode("utf-8", "replace").split())[:300]
                raise ResourceError(f"{config.url}: answered {status}: {body}")
            wait = min(MAX_WAIT, retry_after or wait)
        time.sleep(wait)
    raise AssertionError


def _post(config: EndpointConfig, text: str) -> tuple[int, bytes, float | None]:
    """Send one request; return the status, the body and the Retry-After seconds."""
    parts = urlsplit(config.url)
    assert parts.hostname is not None
    https = parts.scheme == "https"
    connect = http.client.HTTPSConnection if https else http.client.HTTPConnection
    connection = connect(parts.hostname, parts.port, timeout=config.timeout)
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(config.key):
        headers["Authorization"] = f"Bearer {key}"
    request = {
        "model": config.model,
        "messages": [{"role": "user", "content": config.prompt.replace("{text}", text)}],
        "temperature": 0,
        "max_tokens": config.max_tokens,
    }
    try:
        connection.request("POST", f"{parts.path}/chat/completions", json.dumps(request), headers)
        answer = connection.getresponse()
        retry_after = answer.getheader("Retry-After", "")
        return (
            answer.status,
            answer.read(LONGEST_ANSWER),
            float(retry_after) if retry_after.isdigit() else None,
        )
    finally:
        connection.close()


def _content(config: EndpointConfig, reply: bytes) -> str:
    """Return the text of an answer; "" if it was cut at the token limit."""
    try:
        (choice, *_) = json.loads(reply)["choices"]
        content: Any = choice["message"]["content"]
        if not isinstance(content, str):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        message = "expected choices[0].message.content, as in OpenAI's API"
        raise ConfigError("teacher.url", f"{config.url}: unknown response; {message}") from error
    return "" if choice.get("finish_reason") == "length" else content
