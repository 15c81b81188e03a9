"""Clients that send mixed requests concurrently and compare the responses with the library."""

import asyncio
import json
import random
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import outrider
from outrider.runtime import Generator, Translator

WORDS = [
    "a",
    "small",
    "dog",
    "runs",
    "two",
    "men",
    "play",
    "where",
    "is",
    "the",
    "station",
    "it",
    "late",
    "we",
    "go",
    "home",
]
WAYS: list[dict[str, Any]] = [
    {},
    {},
    {"mode": "ar"},
    {"mode": "tandem"},
    {"draft_tokens": 3},
    {"mode": "parallel"},
    {"beams": 3},
    {"temperature": 0.8, "seed": 4},
    {"temperature": 0.9, "top_k": 5, "seed": 2},
    {"temperature": 1.1, "candidates": 3, "seed": 1},
    {"mode": "tandem", "strategy": "sample", "temperature": 0.9, "seed": 8},
    {"gamma": 0.4, "draft_tokens": 4},
    {"max_new_tokens": 7},
]
WRITING = [way for way in WAYS if way.get("mode") != "parallel"]


@dataclass(frozen=True)
class Asked:
    """One request, and whether its client disconnects early."""

    texts: list[str]
    options: dict[str, Any]
    kind: str
    """`translate`, `complete` or `stream`; `told` streams a translation."""
    quits: bool
    split: bool = True


@dataclass
class Outcome:
    """The outcome of all requests."""

    answered: int = 0
    quit: int = 0
    different: list[tuple[Asked, Any, Any]] = field(default_factory=list)


def draw_requests(count: int, *, seed: int, quit_share: float) -> list[Asked]:
    """Make requests of many kinds: a word, a list, a document of many lines."""
    dice = random.Random(seed)

    def sentence() -> str:
        words = [dice.choice(WORDS) for _ in range(dice.randint(1, 8))]
        return " ".join(words) + dice.choice([".", "!", "?", ""])

    asked = []
    for _ in range(count):
        kind = dice.choice(["translate", "translate", "complete", "stream", "told"])
        translates = kind in ("translate", "told")
        ways = WAYS if translates else WRITING
        pieces = dice.choice([1, 1, 2, 12 if translates else 1])
        texts = [dice.choice([" ", "\n"]).join(sentence() for _ in range(pieces))]
        if kind == "translate" and dice.random() < 0.3:
            texts += [sentence(), "", sentence()]
        options = dict(dice.choice(ways))
        if not translates:
            options.setdefault("max_new_tokens", dice.randint(1, 30))
        quits, split = dice.random() < quit_share, kind == "told" or dice.random() < 0.8
        asked.append(Asked(texts, options, kind, quits, split))
    return asked


def play(
    url: str,
    translator: Path,
    writer: Path,
    *,
    place: dict[str, Any],
    requests: int,
    clients: int,
    quit_share: float,
    seed: int,
) -> Outcome:
    """Send all requests and compare the responses with the library."""
    asked = draw_requests(requests, seed=seed, quit_share=quit_share)
    answers = asyncio.run(_ask_all(url, "en-de", writer.name, asked, clients))
    return compare(
        asked, answers, outrider.load(translator, **place), outrider.load(writer, **place)
    )


def compare(asked: list[Asked], answers: list[Any], *models: Any) -> Outcome:
    """Count the responses that equal the library's output; keep the others."""
    translator, writer = models
    assert isinstance(translator, Translator)
    assert isinstance(writer, Generator)
    outcome = Outcome()
    known: dict[str, Any] = {}
    for one, answer in zip(asked, answers, strict=True):
        if answer is None:
            outcome.quit += 1
            continue
        translates = one.kind in ("translate", "told")
        key = json.dumps([one.texts, one.options, translates, one.split])
        if key not in known:
            known[key] = (
                translator.translate(one.texts, split=one.split, **one.options)
                if translates
                else writer.generate(one.texts, **one.options)
            )
        outcome.answered += 1
        if answer != known[key]:
            outcome.different.append((one, answer, known[key]))
    return outcome


async def _ask_all(
    url: str, translator: str, writer: str, asked: list[Asked], clients: int
) -> list[Any]:
    answers: list[Any] = [None] * len(asked)
    left = iter(enumerate(asked))
    dice = random.Random(0)

    async def one_client() -> None:
        async with _client(url) as client:
            for number, one in left:
                if not one.quits:
                    answers[number] = await _ask(client, translator, writer, one)
                    continue
                # A separate connection, closed with the request.
                with suppress(TimeoutError):
                    async with _client(url) as quitter, asyncio.timeout(dice.uniform(0.002, 0.1)):
                        answers[number] = await _ask(quitter, translator, writer, one)

    await asyncio.gather(*(one_client() for _ in range(clients)))
    return answers


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=300, verify=False)


async def _ask(client: httpx.AsyncClient, translator: str, writer: str, one: Asked) -> Any:
    if one.kind == "translate":
        body = {"q": one.texts, "source": "en", "target": "de"}
        body |= {"options": one.options, "split": one.split}
        answer = await client.post("/translate", json=body)
        return answer.json().get("translatedText", answer.text)
    model = translator if one.kind == "told" else writer
    body = {"model": model, "prompt": one.texts, "options": one.options}
    if one.kind == "complete":
        answer = await client.post("/v1/completions", json=body)
        found = answer.json()
        return [choice["text"] for choice in found["choices"]] if "choices" in found else found
    texts = [""] * len(one.texts)
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as told:
        async for line in told.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                for choice in chunk["choices"]:
                    texts[choice["index"]] += choice["text"]
    return texts
