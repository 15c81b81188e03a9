"""The teacher's translations of the text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from outrider.data.config import PrepareConfig
from outrider.data.prepared import Prepared, open_prepared
from outrider.errors import DataError
from outrider.files import write_json
from outrider.files.hub import model_folder
from outrider.formats.folder import weights_of
from outrider.torch.compress.accelerate.plan import (
    distill_sentences,
    probe,
    read_plan,
    read_sentences,
    sample,
    write_sample,
)
from outrider.torch.compress.student.config import StudentConfig
from outrider.torch.compress.student.endpoint import EndpointConfig, translate_remotely

PLAN = "plan.json"
PROBED = 48
"""Sentences translated to measure the speed."""


@dataclass(frozen=True)
class Translations:
    """Files of the teacher's translations."""

    train: list[Path]
    """Files of pairs."""
    valid: list[Path]
    """Held-out pairs; empty if they are to be split off `train`."""
    prepared: Prepared | None = None
    """The same pairs as tokens of the teacher, if the teacher is local."""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the output of `distill`."""
        prepared = open_prepared(folder)
        splits = prepared.manifest.splits
        train, valid = (
            [folder / shard.name for shard in splits[name].shards] for name in ("train", "valid")
        )
        return cls(train, valid, prepared)

    def corpora(self, valid_rows: int) -> dict[str, Any]:
        """Describe the pairs for `PrepareConfig`."""
        corpora = {
            name: {
                "pairs": [str(path) for path in paths],
                "source_column": "source",
                "target_column": "target",
            }
            for name, paths in (("train", self.train), ("valid", self.valid))
            if paths
        }
        return corpora if self.valid else {**corpora, "valid_rows": valid_rows}


def translate(
    config: StudentConfig, work: Path, *, threads: int | None, console: Console
) -> Translations:
    """Translate the text, resuming an earlier start."""
    plan = _plan(config, work, threads, console)
    return _translate(config, work, plan, threads, console)


def _plan(
    config: StudentConfig, work: Path, threads: int | None, console: Console
) -> dict[str, Any]:
    """Return the plan of an earlier start with the same config, or make and report a new one."""
    text = _text(config)
    arguments = {
        "weights": _identity(config.teacher),
        "text": {str(path): most for path, most in text.items()},
        "sentences": config.sentences,
        "translate": {**config.translate.options, "dtype": config.translate.dtype},
        "valid_rows": config.valid_rows,
    }
    path = work / PLAN
    if path.is_file():
        return read_plan(path, arguments)
    found = sum(1 for _ in _sentences(text))
    wanted = min(found, config.sentences or found)
    if wanted < 2 * config.valid_rows:
        raise DataError(
            f"text: {wanted} sentences are too few to hold out {config.valid_rows} of them; give "
            "more, or lower valid_rows"
        )
    plan = {**arguments, "found": found, "wanted": wanted, "dtype": config.translate.dtype}
    message = f"translating {wanted:,} of {found:,} sentences"
    if isinstance(config.teacher, str):
        folder = model_folder(config.teacher)
        speed, dtype = probe(folder, sample(_sentences(text), PROBED, of=found), threads)
        plan |= {"per_second": speed, "dtype": dtype if plan["dtype"] == "auto" else plan["dtype"]}
        message += f", {speed:,.0f} a second: about {wanted / speed / 60:,.0f} minutes"
        if config.translate.strategy != "greedy":
            message += f", and with {config.translate.strategy} a few times that"
    write_json(path, plan)
    console.print(
        f"{message}; then {config.train.steps:,} updates", highlight=False, soft_wrap=True
    )
    return plan


def _identity(teacher: str | EndpointConfig) -> dict[str, str]:
    """Return values that identify the teacher."""
    if isinstance(teacher, str):
        return weights_of(model_folder(teacher))
    return {key: getattr(teacher, key) for key in ("url", "model", "prompt")}


def _translate(
    config: StudentConfig,
    work: Path,
    plan: dict[str, Any],
    threads: int | None,
    console: Console,
) -> Translations:
    out = work / "translated"
    sentences = work / "sentences.txt"
    if not sentences.is_file() and not out.is_dir():
        write_sample(_sentences(_text(config)), sentences, plan["wanted"], of=plan["found"])
    if isinstance(config.teacher, EndpointConfig):
        answers = translate_remotely(config.teacher, sentences, out, progress=console.is_terminal)
        return Translations(answers, [])
    if out.is_dir():
        return Translations.open(out)
    distill_sentences(
        config.teacher,
        work,
        valid_rows=config.valid_rows,
        max_tokens=config.clean.max_tokens,
        dtype=plan["dtype"],
        threads=threads,
        progress=console.is_terminal,
        **config.translate.options,
    )
    return Translations.open(out)


def _text(config: StudentConfig) -> dict[Path, int | None]:
    """Return the text files and the number of sentences to use of each."""
    return {corpus_root(config).path(name): most for name, most in config.text.items()}


def corpus_root(config: StudentConfig) -> PrepareConfig:
    """Return a config that resolves relative files."""
    return PrepareConfig(folder=config.folder, root=config.root)


def _sentences(text: Mapping[Path, int | None]) -> Iterator[str]:
    for path, most in text.items():
        yield from islice(read_sentences([path]), most)
