"""A teacher behind an OpenAI-shaped address: any server that answers `/chat/completions`.

Sentences are asked for side by side, and their answers kept in files of some hundred, each whole or
not there: a run that was killed asks again only for what is missing.
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

__all__ = ["EndpointConfig", "ask_all"]

BLOCK = 256
"""Answers of one file."""
TRIES, PATIENCE = 6, 60.0
"""How often a question is asked, and the most seconds waited in between."""
BUSY = (408, 409, 429, 500, 502, 503, 504)
LONGEST_ANSWER = 1 << 20


class EndpointConfig(Config):
    """A teacher that is asked over HTTP."""

    url: str
    """Address up to `/v1`, such as `http://teacher.example/v1`."""
    model: str
    """What the server calls the model."""
    prompt: str = "Translate into English. Answer with the translation alone.\n\n{text}"
    """What it is told; `{text}` stands for the sentence."""
    key: str = "OPENAI_API_KEY"
    """Environment variable that holds the key, if one is needed; the key itself is never written
    down."""
    at_once: int = Field(default=8, ge=1, le=1024)
    """Questions on their way at the same time."""
    max_tokens: int = Field(default=512, ge=1)
    """Most tokens of an answer."""
    timeout: float = Field(default=120.0, gt=0)
    """Seconds to wait for one."""

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
            raise ValueError("{text} is missing, which stands for the sentence")
        return prompt


def ask_all(config: EndpointConfig, sentences: Path, out: Path, *, progress: bool) -> list[Path]:
    """Let the teacher translate a file line by line; return files of pairs (.jsonl)."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with sentences.open(encoding="utf-8") as lines:
        count = sum(1 for _ in lines)
    with (
        sentences.open(encoding="utf-8") as lines,
        _asking(config.at_once) as pool,
        show_stages(progress) as stages,
    ):
        advance = stages.start("ask the teacher", count)
        for number, block in enumerate(_blocks(lines)):
            path = out / f"{number:06d}.jsonl"
            if not path.is_file():
                answers = list(pool.map(lambda text: _ask(config, text), block))
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
def _asking(at_once: int) -> Iterator[ThreadPoolExecutor]:
    """Ask side by side; after an error, or Ctrl-C, nothing more is asked."""
    pool = ThreadPoolExecutor(at_once)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _blocks(lines: Iterator[str]) -> Iterator[list[str]]:
    stripped = (line.rstrip("\n") for line in lines)
    while block := list(islice(stripped, BLOCK)):
        yield block


def _ask(config: EndpointConfig, text: str) -> str:
    """Return the answer, on one line; ask again where the server is busy."""
    for attempt in range(1, TRIES + 1):
        wait = min(PATIENCE, 2.0**attempt / 2)
        try:
            status, reply, asked = _post(config, text)
        except (OSError, http.client.HTTPException) as error:
            if attempt == TRIES:
                raise ResourceError(f"{config.url}: {error}; is the server there?") from None
        else:
            if status == 200:
                return " ".join(_content(config, reply).split())
            if status not in BUSY or attempt == TRIES:
                said = " ".join(reply.decode("utf-8", "replace").split())[:300]
                raise ResourceError(f"{config.url}: answered {status}: {said}")
            wait = min(PATIENCE, asked or wait)
        time.sleep(wait)
    raise AssertionError


def _post(config: EndpointConfig, text: str) -> tuple[int, bytes, float | None]:
    """Ask once; return the status, the answer, and how long the server asks to be left alone."""
    parts = urlsplit(config.url)
    assert parts.hostname is not None
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=config.timeout)
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(config.key):
        headers["Authorization"] = f"Bearer {key}"
    question = {
        "model": config.model,
        "messages": [{"role": "user", "content": config.prompt.replace("{text}", text)}],
        "temperature": 0,
        "max_tokens": config.max_tokens,
    }
    try:
        connection.request("POST", f"{parts.path}/chat/completions", json.dumps(question), headers)
        answer = connection.getresponse()
        later = answer.getheader("Retry-After", "")
        return (
            answer.status,
            answer.read(LONGEST_ANSWER),
            float(later) if later.isdigit() else None,
        )
    finally:
        connection.close()


def _content(config: EndpointConfig, reply: bytes) -> str:
    """Read the text of an answer; none where the model did not come to its end."""
    try:
        (choice, *_) = json.loads(reply)["choices"]
        content: Any = choice["message"]["content"]
        if not isinstance(content, str):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        message = "expected choices[0].message.content, as OpenAI's servers answer"
        raise ConfigError("teacher.url", f"{config.url} answers otherwise; {message}") from None
    return "" if choice.get("finish_reason") == "length" else content
