"""What an acceleration will do, and how long that takes on this machine.

Sentences of text files: counted, and some of them taken, spread evenly.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outrider.backends.native import NativeBackend
from outrider.data.lines import decode, open_file, read_lines
from outrider.errors import DataError, ModelError
from outrider.files import file_sha256, read_json, replacing, write_json
from outrider.files.hub import model_folder
from outrider.formats.folder import weights_of
from outrider.runtime import Translator, load
from outrider.text.sentences import split

__all__ = [
    "HELD_OUT",
    "Plan",
    "count_sentences",
    "probe",
    "read_sentences",
    "sample",
    "settle_plan",
    "write_sample",
]

LONGEST_LINE = 1 << 16
"""Bytes; a longer line is no text."""
SHORTEST, LONGEST = 2, 400
"""Letters of a sentence that is worth translating."""


def read_sentences(files: Iterable[Path]) -> Iterator[str]:
    """Yield the sentences of files, plain or .gz; what cannot be read is left out."""
    for path in files:
        with open_file(path) as file:
            for raw in read_lines(file, path, LONGEST_LINE):
                line, fault = decode(raw)
                if fault:
                    continue
                for sentence in map(str.strip, split(line)):
                    if SHORTEST <= len(sentence) <= LONGEST:
                        yield sentence


def count_sentences(path: Path) -> int:
    """Count the sentences of a file."""
    return sum(1 for _ in read_sentences([path]))


def sample(sentences: Iterable[str], wanted: int, *, of: int) -> list[str]:
    """Take `wanted` of `of` sentences, spread evenly."""
    return list(_spread(sentences, wanted, of))


def write_sample(sentences: Iterable[str], path: Path, wanted: int, *, of: int) -> None:
    """Write so many of the sentences to a file, one a line."""
    with replacing(path) as out:
        for sentence in _spread(sentences, wanted, of):
            out.write(" ".join(sentence.split()) + "\n")


def _spread(sentences: Iterable[str], wanted: int, of: int) -> Iterator[str]:
    for number, sentence in enumerate(sentences):
        if (number + 1) * wanted // of > number * wanted // of:
            yield sentence


FILE = "plan.json"
HELD_OUT = 400
"""Sentences that are not trained on, and everything is measured with."""
FEWEST = 4 * HELD_OUT
TRANSLATING = 0.15
"""Share of the time for which the model translates. It translates four to twelve times as many
sentences a second as training reads, so this is a pass over the text or two."""
PROBE = 48
"""Sentences that are translated to see how fast that is."""


@dataclass(frozen=True)
class Plan:
    """Settled when an acceleration begins; a resumed one goes on with it."""

    model: str
    weights: dict[str, str]
    """Checksums of the model's files."""
    text: dict[str, str]
    """Files of text, and their checksums."""
    minutes: float
    sentences: int
    """How many of the text are translated."""
    found: int
    """How many the text has."""
    per_second: float
    """Sentences the model translates in a second here."""
    dtype: str
    """What it computes in: int8 on the native core, float32 on PyTorch."""
    threads: int | None

    @property
    def translating_minutes(self) -> float:
        """About how long translating takes."""
        return self.sentences / self.per_second / 60

    @property
    def training_minutes(self) -> float:
        """How long training may take."""
        return self.minutes - self.translating_minutes


def settle_plan(
    model: str | Path, text: Sequence[Path], work: Path, *, minutes: float, threads: int | None
) -> Plan:
    """Return the plan that was settled before, if it is for the same, or settle one."""
    folder = model_folder(model)
    asked: dict[str, Any] = {
        "model": str(model),
        "weights": weights_of(folder),
        "text": {str(path): file_sha256(path) for path in text},
        "minutes": minutes,
        "threads": threads,
    }
    path = work / FILE
    if path.is_file():
        return _resume(path, asked)
    found = sum(count_sentences(one) for one in text)
    if found < FEWEST:
        files = ", ".join(str(one) for one in text)
        raise DataError(f"{files}: {found} sentences are too few, give at least {FEWEST}")
    per_second, dtype = probe(folder, sample(read_sentences(text), PROBE, of=found), threads)
    affordable = int(TRANSLATING * minutes * 60 * per_second)
    plan = Plan(
        **asked,
        sentences=max(FEWEST, min(found, affordable)),
        found=found,
        per_second=round(per_second, 2),
        dtype=dtype,
    )
    work.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(plan))
    return plan


def _resume(path: Path, asked: dict[str, Any]) -> Plan:
    before = read_json(path, error=DataError)
    for key, value in asked.items():
        if before.get(key) != value:
            fix = f"remove {path.parent} to begin anew"
            raise DataError(f"{path}: was begun with another {key}; {fix}")
    try:
        return Plan(**before)
    except TypeError:
        raise DataError(f"{path}: damaged; remove {path.parent} to begin anew") from None


def probe(folder: Path, sentences: Sequence[str], threads: int | None) -> tuple[float, str]:
    """Return how many sentences are translated in a second, and in what."""
    translator = load(folder, threads=threads)
    if not isinstance(translator, Translator):
        raise ModelError(f"{folder}: is a language model; accelerate takes one that translates")
    translator.translate(sentences[:2])  # the first call warms up
    began = time.perf_counter()
    translator.translate(sentences, split=False)
    spent = time.perf_counter() - began
    dtype = "int8" if isinstance(translator.backend, NativeBackend) else "float32"
    return len(sentences) / spent, dtype
