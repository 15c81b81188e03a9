"""Documents: translation in the background, with progress, and results that expire."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath

from outrider.documents import Document, read_document
from outrider.documents.marked import MarkedText
from outrider.errors import OutriderError
from outrider.serving.engine import Engine
from outrider.serving.request import BusyError, TooLargeError, UnknownError

WINDOW_TEXTS, WINDOW_CHARACTERS = 64, 20_000
"""Most texts and characters of a document that are translated in one request."""
AT_ONCE = 2
"""Documents that are translated together; others wait."""
WAITING = 64
"""Most documents that wait, are translated, or whose result is kept."""
KEPT_SECONDS = 3_600.0
"""Time for which a result is kept."""
KEPT_BYTES = 256 << 20
"""Most bytes of documents and results together; the oldest results are dropped."""

Translate = Callable[[Sequence[MarkedText]], Awaitable[list[MarkedText]]]


@dataclass
class Job:
    """A document and its translation."""

    name: str
    """File name of the translation."""
    content: bytes
    """The document, then its translation."""
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """Secret of the client that sent it."""
    characters: int = 0
    texts: int = 0
    done: int = 0
    """Translated texts."""
    began: float | None = None
    finished: float | None = None
    error: OutriderError | None = None
    task: "asyncio.Task[None] | None" = None

    @property
    def running(self) -> bool:
        """Whether it is neither finished nor failed."""
        return self.finished is None

    def seconds_left(self, now: float) -> int:
        """Estimate the rest of the time from the texts that are done."""
        if self.began is None or not self.done:
            return 1 + self.characters // 1_000
        return 1 + int((now - self.began) / self.done * (self.texts - self.done))


class DocumentStore:
    """The documents of one process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jobs: dict[str, Job] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def start(
        self, name: str, content: bytes, target: str, translate: Translate, most_characters: int
    ) -> Job:
        """Start the translation of a document.

        Args:
            name: Its file name; the suffix selects the format.
            content: The document.
            target: Code of the language to translate to.
            translate: Translates some of its texts.
            most_characters: Limit of its characters.
        """
        self._drop_expired()
        if sum(job.running for job in self._jobs.values()) >= WAITING:
            raise BusyError("too many documents are waiting; try again later", retry_after=30)
        document = await self._engine.run_in_worker(read_document, content, name, target)
        characters = sum(len(text.text) for text in document.texts)
        if characters > most_characters:
            message = f"the document has {characters:,} characters, more than {most_characters:,}"
            raise TooLargeError(f"{message}; divide it")
        path = PurePath(name.replace("\\", "/"))
        job = Job(f"{path.stem}.{target}{path.suffix}", content, characters=characters)
        job.texts = len(document.texts)
        self._jobs[job.id] = job
        job.task = asyncio.create_task(self._run(job, document, translate))
        return job

    def find(self, number: str, key: str | None = None) -> Job:
        """Return a document by its id, and by its key if one is given."""
        self._drop_expired()
        job = self._jobs.get(number)
        if job is None or (key is not None and not secrets.compare_digest(job.key, key)):
            raise UnknownError("no such document; results are kept for an hour")
        return job

    def drop(self, job: Job) -> None:
        """Forget a document, and stop its translation."""
        if job.task is not None:
            job.task.cancel()
        self._jobs.pop(job.id, None)

    async def close(self) -> None:
        """Stop all translations."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._jobs.clear()

    async def _run(self, job: Job, document: Document, translate: Translate) -> None:
        try:
            async with self._slots:
                job.began = self._engine.now
                done: list[MarkedText] = []
                while len(done) < job.texts:
                    window = _window(document.texts[len(done) :])
                    done += await self._translate(window, translate)
                    job.done = len(done)
                job.content = await self._engine.run_in_worker(document.write, done)
        except OutriderError as error:
            job.error, job.content = error, b""
        finally:
            job.finished = self._engine.now

    async def _translate(
        self, window: Sequence[MarkedText], translate: Translate
    ) -> list[MarkedText]:
        """Translate some texts; wait while the server refuses requests because of its load."""
        left = KEPT_SECONDS
        while True:
            try:
                return await translate(window)
            except BusyError as error:
                pause = min(error.retry_after or 1, 30)
                left -= pause
                if left < 0:
                    raise
                await asyncio.sleep(pause)

    def _drop_expired(self) -> None:
        limit = self._engine.now - KEPT_SECONDS
        ended = [job for job in self._jobs.values() if job.finished is not None]
        ended.sort(key=lambda job: job.finished or 0.0)
        size = sum(len(job.content) for job in self._jobs.values())
        for job in ended:
            if (job.finished or 0.0) < limit or size > KEPT_BYTES or len(self._jobs) >= WAITING:
                size -= len(job.content)
                self._jobs.pop(job.id)


def _window(texts: Sequence[MarkedText]) -> Sequence[MarkedText]:
    """Return the first texts, as many as are translated in one request."""
    characters = 0
    for count, text in enumerate(texts[:WINDOW_TEXTS]):
        characters += len(text.text)
        if count and characters > WINDOW_CHARACTERS:
            return texts[:count]
    return texts[:WINDOW_TEXTS]
