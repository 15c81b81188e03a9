"""The models of a server: loaded on demand, unloaded when idle, within a memory budget.

A model is given as `FOLDER`, or as `zh-en=FOLDER` with its languages, which are then its name.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from outrider.errors import ConfigError, OutriderError
from outrider.files import JsonFolder
from outrider.files.hub import model_folder
from outrider.formats.folder import CTC, DRAFTER, is_language_model, model_files
from outrider.runtime import Generator, Translator, load
from outrider.serving.limits import Admission, Limits, trim_malloc
from outrider.serving.request import BrokenError, BusyError, LateError, UnknownError
from outrider.serving.scheduler import EngineThread, Events
from outrider.text.chat import Chat, load_chat
from outrider.text.prompt_template import source_frame
from outrider.text.tokenizer import load_tokenizer

_PAIR = re.compile(
    r"(?P<source>[A-Za-z_]{2,8})-(?P<target>[A-Za-z_]{2,8})=(?P<place>.+)", re.DOTALL
)
_CODE = re.compile(r"[A-Za-z_]{2,8}")


@dataclass(frozen=True)
class Spec:
    """A registered model."""

    name: str
    """`zh-en` of `zh-en=FOLDER`, else the last part of the path."""
    folder: Path
    generates: bool
    """Whether it is a language model; otherwise it translates."""
    pair: tuple[str, str] | None
    """Source and target language; None for many, no or unknown languages."""
    languages: tuple[str, ...]
    """Target languages of a multilingual model, by its own codes."""
    needs_source: bool
    """Whether a multilingual model needs the source language, which is one of `languages`."""
    language_names: Mapping[str, str]
    """Names of languages, as far as the folder gives them."""
    modified: int
    """Modification time of its files, in seconds since 1970."""
    weights: int
    """Bytes of its weights on disk, about as many as in memory."""

    @property
    def unknown(self) -> bool:
        """Whether it translates between unknown languages."""
        return not (self.generates or self.pair or self.languages)


def read_spec(model: str) -> Spec:
    """Describe a model without loading it."""
    match = _PAIR.fullmatch(model)
    place = model if match is None else match["place"]
    folder = model_folder(place)
    files = JsonFolder(folder)
    generates = is_language_model(files)
    if generates and match is not None:
        raise ConfigError(model, "is a language model, which has no languages; leave them out")
    pair, language_names = (None, {}) if generates else _argos_languages(files)
    if match is None:
        name = (Path(place).name or folder.resolve().name).removesuffix(".argosmodel")
    else:
        name = model.removesuffix(f"={place}")
        pair = match["source"], match["target"]
    # Only the tokenizer states many languages; it takes up to a second to load.
    languages, needs_source = ((), False) if generates or pair else _multilingual(files)
    own = model_files(folder)
    parts = [folder / part for part in (DRAFTER, CTC) if (folder / part).is_dir()]
    sides = [path for part in parts for path in model_files(part)]
    return Spec(
        name,
        folder,
        generates,
        pair,
        languages,
        needs_source,
        language_names,
        modified=int(max(path.stat().st_mtime for path in own)),
        weights=sum(path.stat().st_size for path in [*own, *sides]),
    )


def _argos_languages(files: JsonFolder) -> tuple[tuple[str, str] | None, dict[str, str]]:
    """Return the language pair of an Argos package, and the names of its languages."""
    values = files.json("metadata.json")
    codes = [values.get(key) for key in ("from_code", "to_code")]
    source, target = (code if isinstance(code, str) else "" for code in codes)
    if not (_CODE.fullmatch(source) and _CODE.fullmatch(target)):
        return None, {}
    names = {source: values.get("from_name"), target: values.get("to_name")}
    return (source, target), {
        code: name[:100] for code, name in names.items() if isinstance(name, str)
    }


def _multilingual(files: JsonFolder) -> tuple[tuple[str, ...], bool]:
    """Return the target languages of a tokenizer, and whether it needs the source language."""
    frame = source_frame(load_tokenizer(files), start=-1, end=None, forced=None)
    return tuple(frame.targets), frame.source is not None


logger = logging.getLogger("outrider.serving")

PATIENCE = 5.0
"""Most seconds that a request waits for memory that other models use."""


@dataclass
class Loaded:
    """A model in memory with its thread and its reservations."""

    spec: Spec
    model: Translator | Generator
    thread: EngineThread
    admission: Admission
    chat: Chat | None
    """Chat template; None for models without one."""
    used: float = field(default_factory=monotonic)
    """Time of the last use."""


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
        load_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Register models without loading them.

        Args:
            specs: The models.
            limits: Limits of each model.
            deliver: Called with the events of a model, on its thread.
            memory: Memory budget in bytes for the weights of all loaded models.
            idle: Seconds after which an unused model is unloaded; None keeps it.
            load_options: Keyword arguments of `outrider.load`.
        """
        self.specs = {spec.name: spec for spec in specs}
        for name, count in Counter(spec.name for spec in specs).items():
            if count > 1:
                fix = "rename a folder, or leave out a name before ="
                raise ConfigError(name, f"two models have this name; {fix}")
        for spec in specs:
            if memory and spec.weights > memory:
                message = f"{spec.name} alone takes {spec.weights:,} bytes; allow as many"
                raise ConfigError("memory", message)
        self.loaded: dict[str, Loaded] = {}
        self.memory = memory
        """Memory budget in bytes."""
        self._limits, self._deliver, self._idle = limits, deliver, idle
        self._load_options = dict(load_options or {})
        self._loading: dict[str, asyncio.Task[Loaded]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        """Unloaded models, whose memory is not free yet."""
        self._users: Counter[str] = Counter()
        self._changed = asyncio.Event()
        """Set, and replaced, when a model was loaded or is no longer used."""
        self.loads: Counter[str] = Counter()
        """Number of loads since the start, by model."""
        self.unloads: Counter[str] = Counter()
        self.load_seconds = dict.fromkeys(self.specs, 0.0)
        """Seconds of all loads, by model."""

    @asynccontextmanager
    async def hold(self, name: str, *, seconds: float | None = None) -> AsyncIterator[Loaded]:
        """Load a model if necessary, within a time limit, and keep it loaded in this context."""
        async with self.hold_all([name], seconds=seconds) as (loaded,):
            yield loaded

    @asynccontextmanager
    async def hold_all(
        self, names: Sequence[str], *, seconds: float | None = None
    ) -> AsyncIterator[list[Loaded]]:
        """Load models if necessary and keep them loaded in this context.

        A request holds all of its models or none, so requests never wait for each other's.
        """
        loading = await self._claim(names, seconds)
        try:
            if loading:
                await _wait(loading, seconds)
            models = [self.loaded[name] for name in names]
            try:
                yield models
            finally:
                for loaded in models:
                    loaded.used = monotonic()
        finally:
            self._users.subtract(names)
            self._users += Counter()  # removes zeros
            self._notify()

    def fits(self, name: str) -> bool:
        """Whether a model fits into the memory budget beside the loaded models."""
        used = self._weights({*self.loaded, *self._loading, name})
        return self.memory is None or used <= self.memory

    async def drop_idle(self) -> None:
        """Unload models that have been unused for `idle` seconds."""
        if self._idle is None:
            return
        oldest = monotonic() - self._idle
        for loaded in self._unused():
            if loaded.used < oldest:
                self._drop(loaded)

    async def close(self) -> None:
        """Unload all models."""
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        for loaded in list(self.loaded.values()):
            self._drop(loaded)
        await asyncio.gather(*self._closing)

    async def _claim(
        self, names: Sequence[str], seconds: float | None
    ) -> dict[str, asyncio.Task[Loaded]]:
        """Count a user of each model when there is memory for all; return the running loads."""
        for name in names:
            if name not in self.specs:
                known = ", ".join(self.specs)
                raise UnknownError(f"no model is called {name[:100]!r}; there are: {known}")
        if not self._make_room(names):
            await self._wait_for_room(names, seconds)
        self._users.update(names)
        for name in names:
            if name not in self.loaded and name not in self._loading:
                task = asyncio.create_task(self._load(self.specs[name]))
                task.add_done_callback(asyncio.Task.exception)  # if all requests are cancelled
                self._loading[name] = task
        return {name: self._loading[name] for name in names if name in self._loading}

    async def _wait_for_room(self, names: Sequence[str], seconds: float | None) -> None:
        try:
            async with asyncio.timeout(PATIENCE if seconds is None else min(PATIENCE, seconds)):
                while not self._make_room(names):
                    await self._changed.wait()
        except TimeoutError as error:
            message = f"no memory for {' and '.join(names)} beside the models in use"
            raise BusyError(f"{message}; try again later", retry_after=5) from error

    def _make_room(self, names: Sequence[str]) -> bool:
        """Unload the least recently used models until others fit; if none would, unload none."""
        if self.memory is None or {*names} <= {*self.loaded, *self._loading}:
            return True
        needed = self._weights({*names, *self.loaded, *self._loading}) - self.memory
        chosen = []
        for loaded in sorted(self._unused(), key=lambda loaded: loaded.used):
            if needed > 0 and loaded.spec.name not in names:
                chosen.append(loaded)
                needed -= loaded.spec.weights
        if needed > 0:
            return False
        for loaded in chosen:
            self._drop(loaded)
        return True

    async def _load(self, spec: Spec) -> Loaded:
        began = monotonic()
        try:
            if self.memory is not None:
                await asyncio.gather(*self._closing)
            loaded = await asyncio.to_thread(self._build, spec)
        except OutriderError as error:
            logger.error("cannot load %s: %s", spec.name, error)
            raise BrokenError(f"{spec.name} cannot be loaded", retry_after=60) from error
        else:
            self.loaded[spec.name] = loaded
            self.loads[spec.name] += 1
            self.load_seconds[spec.name] += monotonic() - began
            return loaded
        finally:
            del self._loading[spec.name]
            self._notify()

    def _build(self, spec: Spec) -> Loaded:
        files = JsonFolder(spec.folder)
        model = load(files, **self._load_options)
        if isinstance(model, Translator) and spec.pair:
            model.writes = spec.pair[1]
        thread = EngineThread(
            model.backend,
            self._limits,
            controllers=model.controllers,
            deliver=self._deliver,
            name=spec.name,
        )
        chat = load_chat(files, model.tokenizer) if isinstance(model, Generator) else None
        return Loaded(spec, model, thread, Admission(self._limits), chat)

    def _weights(self, names: Iterable[str]) -> int:
        return sum(self.specs[name].weights for name in names)

    def _unused(self) -> list[Loaded]:
        return [loaded for name, loaded in self.loaded.items() if not self._users[name]]

    def _drop(self, loaded: Loaded) -> None:
        """Unload a model; its memory is freed on a worker thread."""
        del self.loaded[loaded.spec.name]
        self.unloads[loaded.spec.name] += 1
        self._notify()
        task = asyncio.create_task(asyncio.to_thread(_release, [loaded]))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _notify(self) -> None:
        """Wake the requests that wait for memory."""
        self._changed.set()
        self._changed = asyncio.Event()


async def _wait(loading: Mapping[str, asyncio.Task[Loaded]], seconds: float | None) -> None:
    """Wait for loads; cancelling one request must not cancel a load that others wait for."""
    try:
        async with asyncio.timeout(seconds):
            for task in loading.values():
                await asyncio.shield(task)
    except TimeoutError as error:
        message = f"{' and '.join(loading)} is still being loaded; try again"
        raise LateError(message, retry_after=5) from error


def _release(models: list[Loaded]) -> None:
    """Stop the thread of a model and return its memory to the system."""
    models.pop().thread.close()
    trim_malloc()
