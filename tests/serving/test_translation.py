"""Routes through a pivot: every text equals two consecutive translations by the library."""

import asyncio
import html
import random
import re
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import httpx
import pytest

import outrider
from outrider.decoding import DecodeConfig
from outrider.files.hub import demo_folder
from outrider.runtime import Translator
from outrider.serving.engine import Engine
from outrider.serving.limits import Limits
from outrider.serving.registry import read_spec
from outrider.serving.request import LateError, UnknownError
from outrider.serving.translation import TranslationService
from outrider.text.sentences import join
from tests.helpers.all_apis import in_sequence
from tests.helpers.same_text import WORDS

DOCUMENT = "a small dog runs. two men play!\n\nwhere is the station?  it is late. we go home!"


@pytest.fixture(scope="session")
def second(onward: Path) -> Translator:
    loaded = outrider.load(onward)
    assert isinstance(loaded, Translator)
    return loaded


async def _served(models: Sequence[str], limits: Limits | None = None, **given: Any) -> Any:
    engine = Engine([read_spec(model) for model in models], limits, **given)
    await engine.start(load=False)
    return engine, TranslationService(engine)


def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    return httpx.post(f"{url}/translate", json=body, timeout=120).json()


def pair(code: str, folder: Path) -> str:
    return f"{code}={folder}"


def test_a_pivot_equals_two_translations_in_sequence(serve, translator, onward, offline, second):
    url = serve(pair("de-en", translator), pair("en-pt", onward))
    body = {"source": "de", "target": "pt"}
    for text in (DOCUMENT, "", " \n "):
        answer = ask(url, body | {"q": text})
        assert answer == {"translatedText": in_sequence(offline, second, text)[0]}
    many = ["two men", "", "play! a dog."]
    answer = ask(url, body | {"q": many})
    assert answer["translatedText"] == [in_sequence(offline, second, text)[0] for text in many]
    answer = ask(url, body | {"q": DOCUMENT, "split": False})
    assert answer["translatedText"] == in_sequence(offline, second, DOCUMENT, split=False)[0]


def test_sentences_with_faults_are_decoded_again_at_each_hop(
    serve, translator, onward, offline, second
):
    models = pair("de-en", translator), pair("en-pt", onward)
    offline, second = copy(offline), copy(second)
    offline.writes, second.writes = "en", "pt"
    # A sentence that the server has no time to decode again keeps its fault.
    url = serve(*models, guard=True, limits=Limits(seconds=600))
    (plain,) = offline.results(DOCUMENT)[0]
    (first,) = offline.results(DOCUMENT, guard=True)[0]
    assert first.text != plain.text, "random weights repeat themselves"
    answer = ask(url, {"q": DOCUMENT, "source": "de", "target": "en"})
    assert answer["translatedText"] == first.text
    assert tuple(answer.get("faults", ())) == first.faults
    (work,) = offline.works(DOCUMENT, DecodeConfig())
    sentences = [piece.text.strip() for piece in work.join.args[0].pieces]
    halfway = offline.translate(sentences, guard=True)
    parts = second.translate(halfway, split=False, guard=True)
    answer = ask(url, {"q": DOCUMENT, "source": "de", "target": "pt"})
    assert answer["translatedText"] == join(parts, work.gaps)


def test_alternatives_and_samples_come_from_the_last_model(
    serve, translator, onward, offline, second
):
    url = serve(pair("de-en", translator), pair("en-pt", onward))
    text = "two men. play!"
    body = {"q": text, "source": "de", "target": "pt"}
    answer = ask(url, body | {"alternatives": 2})
    best, *others = in_sequence(offline, second, text, beams=4, n_best=3)
    assert answer == {"translatedText": best, "alternatives": others}
    sampled = {"temperature": 0.8, "seed": 5}
    answer = ask(url, body | {"options": sampled})
    assert answer == {"translatedText": in_sequence(offline, second, text, **sampled)[0]}


def test_html_through_a_pivot_keeps_its_tags(serve, translator, onward, offline, second):
    url = serve(pair("de-en", translator), pair("en-pt", onward))
    body = {"source": "de", "target": "pt", "format": "html"}
    page = "<p>two men <b>play</b></p>"
    answer = ask(url, body | {"q": page})["translatedText"]
    whole = in_sequence(offline, second, "two men play")[0]
    assert html.unescape(re.sub("<[^>]*>", "", answer)) == whole
    assert re.findall("<[^>]*>", answer) == re.findall("<[^>]*>", page)


def test_chinese_to_portuguese_through_english(serve, repository: Path) -> None:
    pytest.importorskip("outrider_native", reason="pip install ./native to test the core")
    folder = demo_folder("en", "pt")
    if folder is None:
        pytest.skip("pip install 'outrider[demo]' for the weights from English to Portuguese")
    chinese = repository / "demo" / "zh-en"
    url = serve(pair("zh-en", chinese), pair("en-pt", folder), load=False)
    text = "我们去公园吧。天气很好！\n今天晚上八点有一场音乐会。"
    answer = ask(url, {"q": text, "source": "zh-CN", "target": "pt-BR"})["translatedText"]
    first, second = outrider.load(chinese), outrider.load(folder)
    assert isinstance(first, Translator)
    assert isinstance(second, Translator)
    assert answer == in_sequence(first, second, text)[0]
    assert "parque" in answer
    assert answer.count("\n") == 1


def test_pivoted_targets_are_listed(serve, translator, onward):
    url = serve(pair("de-en", translator), pair("en-pt_BR", onward), load=False)
    assert httpx.get(f"{url}/languages").json() == [
        {"code": "de", "name": "German", "targets": ["en", "pt-BR"], "pivots": {"pt-BR": "en"}},
        {"code": "en", "name": "English", "targets": ["pt-BR"]},
    ]


def test_mixed_requests_under_load(translator, onward, offline, second):
    dice, short = random.Random(3), {"max_new_tokens": 8}

    def text() -> str:
        sentences = [dice.choices(WORDS, k=dice.randint(1, 7)) for _ in range(dice.choice([1, 9]))]
        return " ".join(f"{' '.join(words)}." for words in sentences)

    wanted = [("de", "pt"), ("de", "pt"), ("de", "en"), ("en", "pt")]
    asked = [(*dice.choice(wanted), text(), dice.random() < 0.15) for _ in range(48)]

    async def answers() -> list[str | None]:
        engine, service = await _served([pair("de-en", translator), pair("en-pt", onward)])

        async def one(source: str, target: str, text: str, quits: bool) -> str | None:
            work = asyncio.create_task(service.translate([text], source, target, options=short))
            if quits:
                await asyncio.sleep(dice.uniform(0, 0.05))
                work.cancel()
            await asyncio.wait([work])
            return None if work.cancelled() else work.result().texts[0][0]

        found = await asyncio.gather(*(one(*each) for each in asked))
        loaded = engine.registry.loaded.values()
        assert [each.admission.tokens for each in loaded] == [0, 0], "all reservations are released"
        assert not any(map(len, (each.admission for each in loaded)))
        await engine.close()
        return found

    for (source, target, text_, quits), answer in zip(asked, asyncio.run(answers()), strict=True):
        if answer is None:
            assert quits
            continue
        if (source, target) == ("de", "pt"):
            assert answer == in_sequence(offline, second, text_, **short)[0]
        else:
            assert answer == (offline if target == "en" else second).translate(text_, **short)


def test_a_sentence_enters_the_second_model_before_the_request_leaves_the_first(translator, onward):
    async def ends() -> tuple[int, int]:
        limits = Limits(rows=2)
        engine, service = await _served(
            [pair("de-en", translator), pair("en-pt", onward)], limits, load_options={}
        )
        work = asyncio.create_task(
            service.translate(["a dog. " * 40], "de", "pt", options={"max_new_tokens": 5})
        )
        while len(engine.registry.loaded) < 2:
            await asyncio.sleep(0.001)
        first, last = (engine.registry.loaded[name].thread for name in ("de-en", "en-pt"))
        while not last.pieces:
            await asyncio.sleep(0.001)
        early = first.pieces
        await work
        found = early, first.pieces
        await engine.close()
        return found

    early, whole = asyncio.run(ends())
    assert early < whole == 40


def test_one_deadline_covers_both_models(translator, onward):
    async def late() -> None:
        engine, service = await _served([pair("de-en", translator), pair("en-pt", onward)])
        await service.translate(["a dog"], "de", "pt")
        with pytest.raises(LateError):
            await service.translate(["a dog runs. " * 500], "de", "pt", seconds=0.05)
        assert [each.admission.tokens for each in engine.registry.loaded.values()] == [0, 0]
        await engine.close()

    asyncio.run(late())


def test_routes_need_memory_for_both_models(translator, onward):
    specs = [read_spec(pair("de-en", translator)), read_spec(pair("en-pt", onward))]
    both = sum(spec.weights for spec in specs)

    async def targets(memory: int) -> tuple[str, ...]:
        engine, service = await _served(
            [pair("de-en", translator), pair("en-pt", onward)], memory=memory
        )
        try:
            if memory < both:
                with pytest.raises(UnknownError, match="cannot translate from 'de' to 'pt'"):
                    await service.translate(["a"], "de", "pt")
            return service.languages[0].targets
        finally:
            await engine.close()

    assert asyncio.run(targets(both)) == ("en", "pt")
    assert asyncio.run(targets(both - 1)) == ("en",)
