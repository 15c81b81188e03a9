"""The models of one server: loaded when asked for, dropped when idle, within a budget of bytes."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from outrider.decoding import DecodeSettings
from outrider.decoding.tandem import may_choose
from outrider.errors import ConfigError, OutriderError
from outrider.runtime import Generator, Translator, load
from outrider.serving.admission import Admission
from outrider.serving.driver import Driver, News
from outrider.serving.limits import Limits
from outrider.serving.refusal import BrokenError, BusyError, LateError, UnknownError
from outrider.serving.spec import Spec
from outrider.text.chat import Chat, load_chat

__all__ = ["Loaded", "Shelf"]

logger = logging.getLogger("outrider.serving")

_TANDEM = DecodeSettings(mode="tandem")


@dataclass
class Loaded:
    """A model in memory, and who decodes with it."""

    spec: Spec
    model: Translator | Generator
    driver: Driver
    admission: Admission
    chat: Chat | None
    """How conversations are written, where it can hold any."""
    drafts: bool
    """Whether requests that name no mode are decoded in tandem: the text is the same, and a
    controller chooses at every load whether drafting pays."""
    used: float = field(default_factory=monotonic)
    """When somebody last left."""


class Shelf:
    """Models by name. For one event loop."""

    def __init__(
        self,
        specs: Sequence[Spec],
        limits: Limits,
        *,
        deliver: Callable[[News], None],
        memory: int | None = None,
        idle: float | None = None,
        place: Mapping[str, Any] | None = None,
    ) -> None:
        """Know some models; nothing is loaded yet.

        Args:
            specs: The models.
            limits: What each takes on.
            deliver: Told the news of every model, on its thread.
            memory: Bytes that the weights of all loaded models may have.
            idle: Seconds after which a model that nobody uses is dropped; None keeps it.
            place: Where to compute: keywords of `outrider.load`.
        """
        self.specs = {spec.name: spec for spec in specs}
        if len(self.specs) < len(specs):
            names = [spec.name for spec in specs]
            double = next(name for name in names if names.count(name) > 1)
            raise ConfigError(
                double,
                "two models have this name; rename a folder, or leave out a name before =",
            )
        large = next((spec for spec in specs if memory and spec.weights > memory), None)
        if large is not None:
            raise ConfigError(
                "memory", f"{large.name} alone takes {large.weights:,} bytes; allow as many"
            )
        self.loaded: dict[str, Loaded] = {}
        self._limits, self._deliver, self._memory, self._idle = limits, deliver, memory, idle
        self._place = dict(place or {})
        self._loading: dict[str, asyncio.Task[Loaded]] = {}
        self._one_by_one = asyncio.Lock()
        self._users: Counter[str] = Counter()
        self.loads = 0
        """How often a model was loaded."""

    @asynccontextmanager
    async def hold(self, name: str, *, seconds: float | None = None) -> AsyncIterator[Loaded]:
        """Load a model where it is not, within so many seconds, and keep it while this lasts."""
        self._users[name] += 1
        try:
            loaded = self.loaded.get(name) or await self._wait(name, seconds)
            try:
                yield loaded
            finally:
                loaded.used = monotonic()
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name]

    async def drop_idle(self) -> None:
        """Drop models that nobody has used for a while."""
        if self._idle is None:
            return
        late = monotonic() - self._idle
        for loaded in self._free():
            if loaded.used < late:
                await self._drop(loaded)

    async def close(self) -> None:
        """Drop everything."""
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        for loaded in list(self.loaded.values()):
            await self._drop(loaded)

    async def _wait(self, name: str, seconds: float | None) -> Loaded:
        try:
            async with asyncio.timeout(seconds):
                return await self._get(name)
        except TimeoutError:
            message = f"{name} is still being loaded; try again"
            raise LateError(message, retry_after=5) from None

    async def _get(self, name: str) -> Loaded:
        if name not in self.specs:
            known = ", ".join(self.specs)
            raise UnknownError(f"no model is called {name[:100]!r}; there are: {known}")
        if name not in self._loading:
            self._loading[name] = asyncio.create_task(self._load(self.specs[name]))
        # Who stops waiting does not stop the loading: others may wait for it too.
        return await asyncio.shield(self._loading[name])

    async def _load(self, spec: Spec) -> Loaded:
        try:
            async with self._one_by_one:
                await self._make_room(spec)
                try:
                    loaded = await asyncio.to_thread(self._build, spec)
                except OutriderError as error:
                    logger.error("cannot load %s: %s", spec.name, error)
                    raise BrokenError(f"{spec.name} cannot be loaded", retry_after=60) from error
            self.loaded[spec.name] = loaded
            self.loads += 1
            return loaded
        finally:
            del self._loading[spec.name]

    def _build(self, spec: Spec) -> Loaded:
        model = load(spec.folder, **self._place)
        drafts = model.backend.drafts is not None and may_choose(model.backend, _TANDEM)
        driver = Driver(
            model.backend,
            self._limits,
            controller=model.controller if drafts else None,
            deliver=self._deliver,
            name=spec.name,
        )
        chat = load_chat(spec.folder, model.tokenizer) if isinstance(model, Generator) else None
        return Loaded(spec, model, driver, Admission(self._limits), chat, drafts)

    async def _make_room(self, spec: Spec) -> None:
        """Drop models, the longest unused first, until another fits."""
        while self._memory is not None:
            held = sum(one.spec.weights for one in self.loaded.values())
            if held + spec.weights <= self._memory:
                return
            free = self._free()
            if not free:
                message = f"there is no room for {spec.name} beside the models that are at work"
                raise BusyError(f"{message}; try again later", retry_after=5)
            await self._drop(min(free, key=lambda one: one.used))

    def _free(self) -> list[Loaded]:
        return [one for name, one in self.loaded.items() if not self._users[name]]

    async def _drop(self, loaded: Loaded) -> None:
        del self.loaded[loaded.spec.name]
        await asyncio.to_thread(loaded.driver.close)
