"""Clients of all translation APIs at once, whose answers are compared with the library's."""

import asyncio
import html
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import outrider
from outrider.runtime import Translator
from outrider.text.sentences import join, split_sentences
from tests.helpers.same_text import WORDS

Post = Callable[..., Awaitable[Any]]
"""Sends a request and returns its JSON answer."""


@dataclass(frozen=True)
class Case:
    """One request."""

    api: str
    source: str
    target: str
    texts: list[str]


@dataclass
class Outcome:
    """Counts of all requests."""

    answered: Counter[str] = field(default_factory=Counter)
    """Answers by API."""
    pivoted: int = 0
    repeated: int = 0
    """Answers 503, after which the client asked again."""
    different: list[tuple[Case, Any, Any]] = field(default_factory=list)
    """Cases with the answer and the library's text."""
    loads: int = 0
    unloads: int = 0


async def _libretranslate(post: Post, case: Case) -> Any:
    body = {"q": case.texts, "source": case.source, "target": case.target}
    return (await post("/translate", json=body))["translatedText"]


async def _libretranslate_form(post: Post, case: Case) -> Any:
    form = {"q": case.texts[0], "source": case.source, "target": case.target}
    return [(await post("/translate", data=form))["translatedText"]]


async def _deepl(post: Post, case: Case) -> Any:
    codes = {"source_lang": case.source.upper(), "target_lang": case.target.upper()}
    answer = await post("/v2/translate", json=codes | {"text": case.texts})
    return [one["text"] for one in answer["translations"]]


async def _google(post: Post, case: Case) -> Any:
    body = {"q": case.texts, "source": case.source, "target": case.target, "format": "text"}
    answer = await post("/language/translate/v2", json=body)
    return [one["translatedText"] for one in answer["data"]["translations"]]


async def _immersive(post: Post, case: Case) -> Any:
    body = {"source_lang": case.source, "target_lang": case.target, "text_list": case.texts}
    return [one["text"] for one in (await post("/imme", json=body))["translations"]]


async def _kiss(post: Post, case: Case) -> Any:
    body = {"from": case.source, "to": case.target, "texts": case.texts}
    return [one["text"] for one in (await post("/kiss", json=body))["translations"]]


async def _mtranserver(post: Post, case: Case) -> Any:
    body = {"from": case.source, "to": case.target, "texts": case.texts}
    return (await post("/translate/batch", json=body))["results"]


async def _mtranserver_page(post: Post, case: Case) -> Any:
    page = {"text": html.escape(case.texts[0], quote=False), "html": True}
    answer = await post("/translate", json=page | {"from": case.source, "to": case.target})
    return [html.unescape(answer["result"])]


async def _openai(post: Post, case: Case) -> Any:
    body = {"model": f"{case.source}-{case.target}", "prompt": case.texts}
    return [one["text"] for one in (await post("/v1/completions", json=body))["choices"]]


APIS: dict[str, Callable[[Post, Case], Awaitable[Any]]] = {
    "LibreTranslate": _libretranslate,
    "LibreTranslate form": _libretranslate_form,
    "DeepL": _deepl,
    "Google": _google,
    "Immersive Translate": _immersive,
    "KISS Translator": _kiss,
    "MTranServer": _mtranserver,
    "MTranServer page": _mtranserver_page,
    "OpenAI": _openai,
}
OF_ONE_TEXT = ("LibreTranslate form", "MTranServer page")


def play(url: str, models: Mapping[str, Path], count: int, *, clients: int, seed: int) -> Outcome:
    """Send requests to a server of these pairs, such as `de-en`, and compare the answers."""
    cases = draw_cases([*models], count, seed=seed)
    outcome = Outcome()
    answers = asyncio.run(_ask_all(url, cases, clients, outcome))
    loaded = {path: outrider.load(path) for path in set(models.values())}
    pairs: dict[str, Any] = {pair: loaded[path] for pair, path in models.items()}
    known: dict[tuple[str, str, str], str] = {}
    for case, answer in zip(cases, answers, strict=True):
        wanted = []
        for text in case.texts:
            key = (case.source, case.target, text)
            if key not in known:
                known[key] = expected(pairs, *key)
            wanted.append(known[key])
        outcome.answered[case.api] += 1
        outcome.pivoted += f"{case.source}-{case.target}" not in models
        if answer != wanted:
            outcome.different.append((case, answer, wanted))
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    for name in ("loads", "unloads"):
        found = (line for line in lines if line.startswith(f"outrider_model_{name}_total{{"))
        setattr(outcome, name, round(sum(float(line.split()[-1]) for line in found)))
    return outcome


def draw_cases(pairs: Sequence[str], count: int, *, seed: int) -> list[Case]:
    """Draw requests of all APIs for the pairs and for their combinations through English."""
    dice = random.Random(seed)
    direct = [tuple(pair.split("-")) for pair in pairs]
    pivoted = [(a, d) for a, b in direct for c, d in direct if b == c == "en" and a != d]

    def sentence() -> str:
        return " ".join(dice.choices(WORDS, k=dice.randint(1, 7))) + dice.choice([".", "!", "?"])

    cases = []
    for number in range(count):
        api = [*APIS][number % len(APIS)]
        source, target = dice.choice(direct if api == "OpenAI" else direct + pivoted)
        texts = [" ".join(sentence() for _ in range(dice.choice([1, 1, 2, 4])))]
        if api not in OF_ONE_TEXT and dice.random() < 0.3:
            texts += [sentence(), sentence()]
        cases.append(Case(api, source, target, texts))
    return cases


def expected(models: Mapping[str, Translator], source: str, target: str, text: str) -> str:
    """Translate with the library, through English if there is no model of the pair."""
    if (model := models.get(f"{source}-{target}")) is not None:
        return str(model.translate(text))
    first, second = models[f"{source}-en"], models[f"en-{target}"]
    return in_sequence(first, second, text)[0]


def in_sequence(
    first: Translator, second: Translator, text: str, *, split: bool = True, **options: Any
) -> list[str]:
    """Translate each sentence with the first model, then with the second; best result first."""
    parts: list[str] = []
    gaps: list[str] = []
    for part in split_sentences(text) if split else text.splitlines(keepends=True):
        if part.strip():
            parts.append(part.strip())
            gaps.append("")
        if gaps:
            gaps[-1] += part[len(part.rstrip()) :]
    limits = {key: options[key] for key in options if key == "max_new_tokens"}
    middle = first.translate(parts, split=False, **limits)
    ranked = []
    for sentence in middle:
        (results,) = second.results(sentence, split=False, **options)
        ranked.append([one.text for one in results])
    most = max(map(len, ranked), default=1)
    return [join([one[min(k, len(one) - 1)] for one in ranked], gaps) for k in range(most)]


async def _ask_all(url: str, cases: Sequence[Case], clients: int, outcome: Outcome) -> list[Any]:
    answers: list[Any] = [None] * len(cases)
    left = iter(enumerate(cases))

    async def one_client() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=300, verify=False) as client:

            async def post(path: str, **body: Any) -> Any:
                while (answer := await client.post(path, **body)).status_code == 503:
                    assert "retry-after" in answer.headers
                    outcome.repeated += 1
                    await asyncio.sleep(0.2)
                assert answer.status_code == 200, (path, answer.status_code, answer.text)
                return answer.json()

            for number, case in left:
                answers[number] = await APIS[case.api](post, case)

    await asyncio.gather(*(one_client() for _ in range(clients)))
    return answers
