"""The engine gives the same results as the library under concurrent and cancelled requests."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider.errors import ConfigError, InputError
from outrider.serving import registry
from outrider.serving.engine import Engine
from outrider.serving.limits import Limits
from outrider.serving.registry import read_spec
from outrider.serving.request import (
    BusyError,
    Delta,
    LateError,
    Output,
    TextRequest,
    TooLargeError,
    UnknownError,
)
from tests.helpers.served import with_engine

TEXT = "a small dog runs. two men play! where is the station?"
LONG = " ".join([TEXT] * 10)


def run(models: list[str], story: Callable[[Engine], Awaitable[Any]], **given: Any) -> Any:
    return with_engine([read_spec(model) for model in models], story, **given)


def ask(text: str = TEXT, **given: Any) -> TextRequest:
    return TextRequest(**{"model": "en-de", "texts": (text,), **given})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_stream_yields_every_token_and_ends_with_the_text(translator, offline) -> None:
    async def story(engine: Engine) -> None:
        tokens: dict[int, list[int]] = {}
        texts, drafted = [], 0
        async for event in engine.stream(ask(options={"draft_tokens": 4})):
            if isinstance(event, Delta):
                tokens.setdefault(event.piece, []).extend(event.tokens)
                drafted += sum(len(one.drafted) for one in event.rounds)
            else:
                texts.append((event.pieces, event.done, event.results[0].text))
        (whole,) = offline.results([TEXT])[0]
        assert [token for piece in sorted(tokens) for token in tokens[piece]] == list(whole.tokens)
        assert drafted > 0, "rounds contain the drafts"
        assert texts[-1] == (3, True, whole.text)
        assert all(whole.text.startswith(text) for *_, text in texts)

    run([f"en-de={translator}"], story)


def test_an_empty_text_ends_at_once(translator) -> None:
    async def story(engine: Engine) -> None:
        events = [event async for event in engine.stream(ask("", texts=("", " \n")))]
        assert [(event.text, event.done) for event in events] == [(0, True), (1, True)]
        assert all(isinstance(event, Output) for event in events)

    run([f"en-de={translator}"], story)


def test_the_deadline_counts_from_the_start_of_the_request(translator) -> None:
    async def story(engine: Engine) -> None:
        now = asyncio.get_running_loop().time()
        assert await engine.answer(ask(began=now - 1))
        with pytest.raises(LateError, match="not finish within 60 seconds"):
            await engine.answer(ask(began=now - 61))

    run([f"en-de={translator}"], story)


def test_a_cancelled_request_stops_at_the_next_step(translator, offline) -> None:
    async def story(engine: Engine) -> None:
        async with engine.registry.hold("en-de") as loaded:
            waiting = asyncio.create_task(engine.answer(ask(LONG)))
            await until(lambda: loaded.thread.running > 0)
            assert len(loaded.admission) == 1
            waiting.cancel()
            await until(lambda: loaded.thread.running == 0)
            assert (len(loaded.admission), loaded.admission.tokens) == (0, 0)
            whole = len(offline.results([LONG])[0][0].tokens)
            assert 0 < loaded.thread.tokens < whole / 2, "it was decoded to its end"
            assert (await engine.answer(ask()))[0][0].text == offline.translate(TEXT)
            async with aclosing(engine.stream(ask(LONG))) as events:
                async for _ in events:
                    break
            await until(lambda: loaded.thread.running == 0)
            assert loaded.admission.tokens == 0

    run([f"en-de={translator}"], story)


def test_a_short_request_overtakes_a_document(translator) -> None:
    async def story(engine: Engine) -> None:
        order: list[str] = []

        async def one(name: str, text: str) -> None:
            await engine.answer(ask(text))
            order.append(name)

        async with engine.registry.hold("en-de") as loaded:
            book = asyncio.create_task(one("book", LONG))
            await until(lambda: loaded.thread.running > 0)
            await asyncio.gather(one("note", "two men play"), book)
        assert order == ["note", "book"]

    run([f"en-de={translator}"], story, limits=Limits(rows=2))


def test_a_request_past_its_deadline_is_cancelled(translator) -> None:
    async def story(engine: Engine) -> None:
        async with engine.registry.hold("en-de") as loaded:
            with pytest.raises(LateError, match=r"not finish within 0\.05 seconds"):
                await engine.answer(ask(" ".join([LONG] * 20), seconds=0.05))
            await until(lambda: loaded.thread.running == 0)

    run([f"en-de={translator}"], story)


def test_the_queue_is_bounded(translator, offline) -> None:
    async def story(engine: Engine) -> None:
        async with engine.registry.hold("en-de") as loaded:
            first = asyncio.create_task(engine.answer(ask(LONG)))
            await until(lambda: len(loaded.admission) == 1)
            with pytest.raises(BusyError, match="too many requests are waiting") as refused:
                await engine.answer(ask(LONG))
            assert refused.value.status == 503
            assert refused.value.retry_after >= 1
            assert (await first)[0][0].text == offline.translate(LONG)
            await engine.answer(ask(LONG))  # the queue has space again

    run([f"en-de={translator}"], story, limits=Limits(queue_tokens=3000))


def test_sizes_are_bounded(translator) -> None:
    async def story(engine: Engine) -> None:
        with pytest.raises(TooLargeError, match="3 texts; send at most 2"):
            await engine.answer(ask(texts=("a",) * 3))
        with pytest.raises(TooLargeError, match="53 characters; send at most 40"):
            await engine.answer(ask())
        for key, value in (("beams", 5), ("max_new_tokens", 9)):
            with pytest.raises(ConfigError, match=f"{key}: got {value}; this server allows"):
                await engine.answer(ask("a", options={key: value}))
        with pytest.raises(UnknownError, match="no model is called 'x'; there are: en-de"):
            await engine.answer(ask(model="x"))

    limits = Limits(texts=2, characters=40, rows_each=4, new_tokens=8)
    run([f"en-de={translator}"], story, limits=limits)


def test_idle_models_are_unloaded_and_loaded_again(translator, offline) -> None:
    async def story(engine: Engine) -> None:
        for _ in range(2):
            assert (await engine.answer(ask()))[0][0].text == offline.translate(TEXT)
            await until(lambda: not engine.registry.loaded)
        assert engine.registry.loads["en-de"] == 2

    run([f"en-de={translator}"], story, idle=0.1)


def test_models_share_a_memory_budget(translator, writer, monkeypatch) -> None:
    monkeypatch.setattr(registry, "PATIENCE", 0.1)

    async def story(engine: Engine) -> None:
        await engine.answer(ask())
        assert list(engine.registry.loaded) == ["en-de"]
        await engine.answer(ask("two men", model="text", options={"max_new_tokens": 4}))
        assert list(engine.registry.loaded) == ["text"]
        async with engine.registry.hold("text"):
            with pytest.raises(BusyError, match="no memory for en-de beside the models"):
                await engine.answer(ask())

    specs = [read_spec(f"en-de={translator}"), read_spec(str(writer))]
    memory = max(spec.weights for spec in specs)
    run([f"en-de={translator}", str(writer)], story, memory=memory)
    with pytest.raises(ConfigError, match=r"memory: en-de alone takes [\d,]+ bytes"):
        Engine(specs, memory=100)


def test_simultaneous_requests_load_a_model_once(translator) -> None:
    async def story(engine: Engine) -> None:
        quitter = asyncio.create_task(engine.answer(ask()))
        await asyncio.sleep(0)
        quitter.cancel()
        await asyncio.gather(*(engine.answer(ask()) for _ in range(4)))
        assert engine.registry.loads["en-de"] == 1

    run([f"en-de={translator}"], story)


def test_an_error_fails_active_requests_only(translator, offline, monkeypatch) -> None:
    async def story(engine: Engine) -> None:
        async with engine.registry.hold("en-de") as loaded:
            with monkeypatch.context() as patch:
                backend = type(loaded.model.backend)

                def fail(*given: Any, **named: Any) -> None:
                    raise InputError("no more")

                patch.setattr(backend, "encode", fail)
                with pytest.raises(InputError, match="no more"):
                    await engine.answer(ask())
            assert (await engine.answer(ask()))[0][0].text == offline.translate(TEXT)
            assert loaded.admission.tokens == 0

    run([f"en-de={translator}"], story)


def test_closing_fails_pending_requests(translator) -> None:
    async def story(engine: Engine) -> None:
        async with engine.registry.hold("en-de") as loaded:
            waiting = asyncio.create_task(engine.answer(ask(LONG)))
            await until(lambda: loaded.thread.running > 0)
        await engine.close()
        with pytest.raises(BusyError, match="shutting down"):
            await waiting
        with pytest.raises(BusyError, match="not running"):
            await engine.answer(ask())

    run([f"en-de={translator}"], story)


def test_languages_are_read_from_the_folder_or_the_command_line(tmp_path: Path, translator) -> None:
    spec = read_spec(str(translator))
    assert (spec.name, spec.pair, spec.languages, spec.unknown) == ("tiny", None, (), True)
    spec = read_spec(f"en-de={translator}")
    assert (spec.name, spec.pair, spec.generates) == ("en-de", ("en", "de"), False)
    with pytest.raises(ConfigError, match="two models have this name"):
        Engine([spec, spec])


def test_a_language_model_has_no_languages(writer) -> None:
    assert read_spec(str(writer)).generates
    with pytest.raises(ConfigError, match="is a language model"):
        read_spec(f"en-de={writer}")


def test_a_language_model_continues_prompts(writer) -> None:
    async def story(engine: Engine) -> None:
        options = {"max_new_tokens": 12}
        found = await engine.answer(ask("two men", model="text", options=options))
        loaded = outrider.load(writer)
        assert found[0][0].text == loaded.generate("two men", **options)

    run([str(writer)], story)
