"""Models of a server: quick start with many, loads and unloads beside other requests."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from outrider.serving import registry
from outrider.serving.engine import Engine
from outrider.serving.registry import Spec, read_spec
from outrider.serving.request import BusyError, TextRequest
from outrider.serving.run import Service
from outrider.serving.translation import TranslationService
from tests.helpers import bergamot_tiny
from tests.helpers.served import with_engine

CODES = ("bg", "cs", "da", "de", "el", "es", "et", "fi", "fr", "hu")
SHORT = {"max_new_tokens": 4}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Twenty pairs in folders of Firefox's shape."""
    folder = tmp_path_factory.mktemp("pairs")
    names = [name for code in CODES for name in (f"{code}-en", f"en-{code}")]
    for name in names:
        bergamot_tiny.write_folder(folder / name)
    return [f"{name}={folder / name}" for name in names]


def run(
    models: list[str], story: Callable[[Engine], Awaitable[Any]], *, fit: int | None = None
) -> Any:
    """Run a coroutine with an engine whose memory fits a number of models."""
    specs = [read_spec(model) for model in models]
    memory = None if fit is None else fit * max(spec.weights for spec in specs)
    return with_engine(specs, story, memory=memory)


async def ask(engine: Engine, name: str) -> str:
    request = TextRequest(model=name, texts=("the cat sees the dog",), options=SHORT)
    return (await engine.answer(request))[0][0].text


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Loads of bg-en, and all unloads, wait for this event."""
    event = threading.Event()
    build, release = registry.ModelRegistry._build, registry._release

    def build_late(self: registry.ModelRegistry, spec: Spec) -> registry.Loaded:
        assert spec.name != "bg-en" or event.wait(10)
        return build(self, spec)

    def release_late(models: list[registry.Loaded]) -> None:
        assert event.wait(10)
        release(models)

    monkeypatch.setattr(registry.ModelRegistry, "_build", build_late)
    monkeypatch.setattr(registry, "_release", release_late)
    return event


def test_twenty_pairs_start_like_one(pairs, monkeypatch) -> None:
    def build(models: list[str]) -> float:
        began = time.perf_counter()
        Service(models=tuple(models), load=False).build()
        return time.perf_counter() - began

    def refuse(*given: Any) -> None:
        raise AssertionError("a tokenizer was loaded")

    monkeypatch.setattr(registry, "load_tokenizer", refuse)
    build(pairs[:1])  # imports
    assert build(pairs) - build(pairs[:1]) < 0.5


def test_a_load_delays_no_other_pair(pairs, go) -> None:
    async def story(engine: Engine) -> None:
        await ask(engine, "en-bg")
        waiting = asyncio.create_task(ask(engine, "bg-en"))
        await asyncio.sleep(0)
        for name in ("en-bg", "cs-en", "en-cs"):
            await ask(engine, name)
        assert "bg-en" not in engine.registry.loaded
        go.set()
        assert await waiting == await ask(engine, "en-bg")

    run(pairs, story)


def test_an_unload_delays_no_other_pair(pairs, go) -> None:
    async def story(engine: Engine) -> None:
        for name in ("en-bg", "cs-en"):
            await ask(engine, name)
        waiting = asyncio.create_task(ask(engine, "en-cs"))
        await asyncio.sleep(0)
        await ask(engine, "cs-en")
        assert engine.registry.unloads == {"en-bg": 1}
        assert "en-cs" not in engine.registry.loaded, "loaded before the memory was free"
        go.set()
        await waiting

    run(pairs, story, fit=2)


def test_the_memory_of_an_unloaded_model_is_free(pairs) -> None:
    async def story(engine: Engine) -> None:
        await ask(engine, "bg-en")
        backend = weakref.ref(engine.registry.loaded["bg-en"].model.backend)
        await ask(engine, "en-bg")
        gc.collect()
        assert backend() is None

    run(pairs, story, fit=1)


def test_a_request_waits_for_memory(pairs, monkeypatch) -> None:
    async def story(engine: Engine) -> None:
        async with engine.registry.hold("bg-en"):
            waiting = asyncio.create_task(ask(engine, "en-bg"))
            await asyncio.sleep(0.1)
            assert not waiting.done()
        await waiting
        monkeypatch.setattr(registry, "PATIENCE", 0.05)
        async with engine.registry.hold("bg-en"):
            with pytest.raises(BusyError, match="no memory for en-bg beside the models in use"):
                await ask(engine, "en-bg")

    run(pairs, story, fit=1)


def test_pivoted_requests_do_not_block_each_other(pairs, monkeypatch) -> None:
    monkeypatch.setattr(registry, "PATIENCE", 60.0)

    async def story(engine: Engine) -> None:
        service = TranslationService(engine)
        wanted = [("bg", "cs"), ("da", "de"), ("el", "es"), ("de", "bg")] * 6
        answers = await asyncio.gather(
            *(service.translate(["the cat. the dog."], *pair, options=SHORT) for pair in wanted)
        )
        assert len({one.texts[0][0] for one in answers}) == 1, "all pairs have the same weights"
        assert len(engine.registry.loaded) == 2
        assert engine.registry.unloads.total() >= 6

    run(pairs, story, fit=2)


def test_the_start_loads_what_fits(pairs) -> None:
    async def story(engine: Engine) -> None:
        await engine.start()
        assert list(engine.registry.loaded) == ["bg-en", "en-bg", "cs-en"]
        assert not engine.registry.unloads

    run(pairs, story, fit=3)
