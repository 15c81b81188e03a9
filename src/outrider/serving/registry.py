"""The models of one server: loaded when asked for, dropped when idle, within a budget of bytes.

What is to be served: `FOLDER`, or `zh-en=FOLDER`, which names the languages and the model.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from outrider.decoding import DecodeSettings
from outrider.decoding.tandem import may_choose
from outrider.errors import ConfigError, OutriderError
from outrider.files import read_json
from outrider.files.hub import model_folder
from outrider.formats.folder import CTC, DRAFTER, model_files, read_config
from outrider.formats.spec import LanguageModelSpec
from outrider.runtime import Generator, Translator, load
from outrider.serving.admission import Admission
from outrider.serving.answers import BrokenError, BusyError, LateError, UnknownError
from outrider.serving.driver import EngineThread, Events
from outrider.serving.limits import Limits
from outrider.text.chat import Chat, load_chat
from outrider.text.prompt_template import source_frame
from outrider.text.tokenizer import load_tokenizer

__all__ = ["Loaded", "ModelRegistry", "Spec", "read_spec"]

_PAIR = re.compile(
    r"(?P<source>[A-Za-z_]{2,8})-(?P<target>[A-Za-z_]{2,8})=(?P<place>.+)", re.DOTALL
)
_CODE = re.compile(r"[A-Za-z_]{2,8}")


@dataclass(frozen=True)
class Spec:
    """A model that can be asked for by name, loaded or not."""

    name: str
    """What clients call it: `zh-en` of `zh-en=FOLDER`, else the last part of its path."""
    folder: Path
    writes: bool
    """Whether it continues prompts; if not, it translates."""
    pair: tuple[str, str] | None
    """The languages it translates between; None where it has many or none, or they are unknown."""
    languages: tuple[str, ...]
    """Languages it writes, as it names them, where it has many."""
    reads: bool
    """Whether it is told what it reads, which is then one of those."""
    names: Mapping[str, str]
    """What languages are called, where the folder says so."""
    changed: int
    """When its config was written, in seconds since 1970."""
    weights: int
    """Bytes of its weights on disk, which is about what they take in memory."""

    @property
    def unknown(self) -> bool:
        """Whether it translates, but neither its folder nor the command line says what."""
        return not (self.writes or self.pair or self.languages)


def read_spec(given: str) -> Spec:
    """Look at a model without loading it."""
    match = _PAIR.fullmatch(given)
    place = given if match is None else match["place"]
    folder = model_folder(place)
    config = read_config(folder)
    writes = isinstance(config, LanguageModelSpec)
    if writes and match is not None:
        raise ConfigError(given, "is a language model, which has no languages; leave them out")
    pair, names = (None, {}) if writes else _told(folder)
    languages, reads = ((), False) if writes or pair else _many(folder)
    if match is not None:
        pair, languages, reads = (match["source"], match["target"]), (), False
    name = _name(folder, place) if match is None else given.removesuffix(f"={place}")
    return Spec(
        name, folder, writes, pair, languages, reads, names, _changed(folder), _weights(folder)
    )


def _told(folder: Path) -> tuple[tuple[str, str] | None, dict[str, str]]:
    """Return the languages that an Argos package names, and what they are called."""
    path = folder / "metadata.json"
    values = read_json(path) if path.exists() else {}
    codes = [values.get(key) for key in ("from_code", "to_code")]
    source, target = (code if isinstance(code, str) else "" for code in codes)
    if not (_CODE.fullmatch(source) and _CODE.fullmatch(target)):
        return None, {}
    called = {source: values.get("from_name"), target: values.get("to_name")}
    names = {code: name[:100] for code, name in called.items() if isinstance(name, str)}
    return (source, target), names


def _many(folder: Path) -> tuple[tuple[str, ...], bool]:
    """Return the languages that a tokenizer names, and whether a source is told its own."""
    frame = source_frame(load_tokenizer(folder), start=-1, end=None, forced=None)
    return tuple(frame.targets), frame.told


def _name(folder: Path, place: str) -> str:
    """Name a model by the last part of what the user typed, or of where it leads."""
    name = Path(place).name or folder.resolve().name
    return name.removesuffix(".argosmodel")


def _changed(folder: Path) -> int:
    return int(max(path.stat().st_mtime for path in model_files(folder)))


def _weights(folder: Path) -> int:
    places = [folder, *(folder / side for side in (DRAFTER, CTC) if (folder / side).is_dir())]
    return sum(path.stat().st_size for place in places for path in model_files(place))


logger = logging.getLogger("outrider.serving")

_TANDEM = DecodeSettings(mode="tandem")


@dataclass
class Loaded:
    """A model in memory, and who decodes with it."""

    spec: Spec
    model: Translator | Generator
    driver: EngineThread
    admission: Admission
    chat: Chat | None
    """How conversations are written, where it can hold any."""
    drafts: bool
    """Whether requests that name no mode are decoded in tandem: the text is the same, and a
    controller chooses at every load whether drafting pays."""
    used: float = field(default_factory=monotonic)
    """When somebody last left."""


class ModelRegistry:
    """Models by name. For one event loop."""

    def __init__(
        self,
        specs: Sequence[Spec],
        limits: Limits,
        *,
        deliver: Callable[[Events], None],
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
        driver = EngineThread(
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
