"""The plan of an acceleration: a sample of the text, and the time each stage takes here."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outrider.backends.native import NativeBackend
from outrider.config import build_config
from outrider.data.config import PrepareConfig
from outrider.data.lines import decode, open_file, read_lines
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared
from outrider.errors import DataError, ModelError
from outrider.files import file_sha256, read_json, replacing, write_json
from outrider.files.hub import model_folder
from outrider.formats.folder import weights_of
from outrider.jobs.distill import distill
from outrider.runtime import Translator, load
from outrider.text.sentences import split_sentences

LONGEST_LINE = 1 << 16
"""Bytes; longer lines are skipped."""
SHORTEST, LONGEST = 2, 400
"""Characters of a sentence that is used."""


def read_sentences(files: Iterable[Path]) -> Iterator[str]:
    """Yield the sentences of files, plain or .gz; undecodable lines are skipped."""
    for path in files:
        with open_file(path) as file:
            for raw in read_lines(file, path, LONGEST_LINE):
                line, fault = decode(raw)
                if fault:
                    continue
                for sentence in map(str.strip, split_sentences(line)):
                    if SHORTEST <= len(sentence) <= LONGEST:
                        yield sentence


def sample(sentences: Iterable[str], wanted: int, *, of: int) -> list[str]:
    """Take `wanted` of `of` sentences, evenly spaced."""
    return list(_spread(sentences, wanted, of))


def write_sample(sentences: Iterable[str], path: Path, wanted: int, *, of: int) -> None:
    """Write `wanted` of `of` sentences to a file, one per line."""
    with replacing(path) as out:
        for sentence in _spread(sentences, wanted, of):
            out.write(" ".join(sentence.split()) + "\n")


def _spread(sentences: Iterable[str], wanted: int, of: int) -> Iterator[str]:
    for number, sentence in enumerate(sentences):
        if (number + 1) * wanted // of > number * wanted // of:
            yield sentence


FILE = "plan.json"
HELD_OUT = 400
"""Sentences held out of training, for validation and timing."""
FEWEST = 4 * HELD_OUT
TRANSLATING = 0.15
"""Share of the time spent on translating. Translation processes four to twelve times as many
sentences per second as training, so this gives one or two epochs.
"""
PROBE = 48
"""Sentences translated to measure the speed."""


@dataclass(frozen=True)
class Plan:
    """Fixed at the first start; a resumed acceleration keeps it."""

    model: str
    weights: dict[str, str]
    """Checksums of the model's files."""
    text: dict[str, str]
    """Text files and their checksums."""
    minutes: float
    sentences: int
    """Number of sentences to translate."""
    found: int
    """Number of sentences in the text."""
    per_second: float
    """Sentences per second that the model translates on this machine."""
    dtype: str
    """int8 on the native core, float32 on PyTorch."""
    threads: int | None

    @property
    def translating_minutes(self) -> float:
        """Estimated time of translation."""
        return self.sentences / self.per_second / 60

    @property
    def training_minutes(self) -> float:
        """Time left for training."""
        return self.minutes - self.translating_minutes


def load_or_make_plan(
    model: str | Path, text: Sequence[Path], work: Path, *, minutes: float, threads: int | None
) -> Plan:
    """Return the plan of an earlier start with the same arguments, or make a new one."""
    folder = model_folder(model)
    arguments: dict[str, Any] = {
        "model": str(model),
        "weights": weights_of(folder),
        "text": {str(path): file_sha256(path) for path in text},
        "minutes": minutes,
        "threads": threads,
    }
    path = work / FILE
    if path.is_file():
        try:
            return Plan(**read_plan(path, arguments))
        except TypeError as error:
            raise DataError(f"{path}: damaged; remove {work} to start over") from error
    found = sum(1 for _ in read_sentences(text))
    if found < FEWEST:
        files = ", ".join(map(str, text))
        raise DataError(f"{files}: {found} sentences are too few, give at least {FEWEST}")
    per_second, dtype = probe(folder, sample(read_sentences(text), PROBE, of=found), threads)
    affordable = int(TRANSLATING * minutes * 60 * per_second)
    plan = Plan(
        **arguments,
        sentences=max(FEWEST, min(found, affordable)),
        found=found,
        per_second=round(per_second, 2),
        dtype=dtype,
    )
    work.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(plan))
    return plan


def read_plan(path: Path, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Read the plan of an earlier start, which must have the same arguments."""
    plan: dict[str, Any] = read_json(path, error=DataError)
    for key, value in arguments.items():
        if plan.get(key) != value:
            fix = f"remove {path.parent} to start over"
            raise DataError(f"{path}: was started with another {key}; {fix}")
    return plan


def distill_sentences(
    model: str,
    work: Path,
    *,
    valid_rows: int,
    max_tokens: int,
    dtype: str,
    threads: int | None,
    progress: bool,
    **options: Any,
) -> Prepared:
    """Translate `sentences.txt` of a working folder with the model."""
    values = {
        "folder": str(work / "sentences"),
        "train": {"source": [str(work / "sentences.txt")]},
        "valid_rows": valid_rows,
        "tokenizer": {"folder": str(model_folder(model))},
        "clean": {"max_tokens": max_tokens, "on_bad_text": "drop"},
    }
    config = build_config(PrepareConfig, values, prefix="data.")
    prepared = prepare(config, task="translation", progress=progress)
    out = work / "translated"
    return distill(
        model, prepared.folder, out, dtype=dtype, threads=threads, progress=progress, **options
    )


def probe(folder: Path, sentences: Sequence[str], threads: int | None) -> tuple[float, str]:
    """Return the sentences per second that a model translates here, and the dtype used."""
    translator = load(folder, threads=threads)
    if not isinstance(translator, Translator):
        raise ModelError(f"{folder}: is a language model; accelerate needs a translation model")
    translator.translate(sentences[:2])  # the first call warms up
    start = time.perf_counter()
    translator.translate(sentences, split=False)
    elapsed = time.perf_counter() - start
    dtype = "int8" if isinstance(translator.backend, NativeBackend) else "float32"
    return len(sentences) / elapsed, dtype
