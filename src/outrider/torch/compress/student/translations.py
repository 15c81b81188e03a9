"""What a teacher says to text: planned, asked for, kept."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from outrider.config import build_config
from outrider.data.config import PrepareConfig
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared, open_prepared
from outrider.errors import DataError
from outrider.files import read_json, write_json
from outrider.files.hub import model_folder
from outrider.formats.folder import weights_of
from outrider.jobs.distill import distill
from outrider.torch.compress.accelerate.plan import probe, read_sentences, sample, write_sample
from outrider.torch.compress.student.config import StudentConfig
from outrider.torch.compress.student.endpoint import EndpointConfig, ask_all

__all__ = ["Translations", "corpus_root", "translate"]

PLAN = "plan.json"
PROBED = 48
"""Sentences that are translated to see how fast that is."""


@dataclass(frozen=True)
class Translations:
    """What the teacher said."""

    train: list[Path]
    """Files of pairs."""
    valid: list[Path]
    """Those that are held out; none where some of `train` are yet to be."""
    prepared: Prepared | None = None
    """The same in tokens of the teacher, where it has any."""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open what `distill` wrote."""
        prepared = open_prepared(folder)
        splits = prepared.manifest.splits
        train, valid = (
            [folder / shard.name for shard in splits[name].shards] for name in ("train", "valid")
        )
        return cls(train, valid, prepared)

    def corpora(self, valid_rows: int) -> dict[str, Any]:
        """Describe the pairs for `PrepareConfig`."""
        found = {
            name: {
                "pairs": [str(path) for path in paths],
                "source_column": "source",
                "target_column": "target",
            }
            for name, paths in (("train", self.train), ("valid", self.valid))
            if paths
        }
        return found if self.valid else {**found, "valid_rows": valid_rows}


def translate(
    config: StudentConfig, work: Path, *, threads: int | None, console: Console
) -> Translations:
    """Let the teacher translate the text, or what is left of it."""
    plan = _settle(config, work, threads, console)
    return _translate(config, work, plan, threads, console)


def _settle(
    config: StudentConfig, work: Path, threads: int | None, console: Console
) -> dict[str, Any]:
    """Return what was settled when this student was begun, or settle it, and say how long."""
    text = _text(config)
    asked = {
        "weights": _identity(config.teacher),
        "text": {str(path): most for path, most in text.items()},
        "sentences": config.sentences,
        "translate": {**config.translate.options, "dtype": config.translate.dtype},
        "valid_rows": config.valid_rows,
    }
    path = work / PLAN
    if path.is_file():
        before: dict[str, Any] = read_json(path, error=DataError)
        for key, value in asked.items():
            if before.get(key) != value:
                fix = f"remove {work} to begin anew"
                raise DataError(f"{path}: was begun with another {key}; {fix}")
        return before
    found = sum(1 for _ in _sentences(text))
    wanted = min(found, config.sentences or found)
    if wanted < 2 * config.valid_rows:
        raise DataError(
            f"text: {wanted} sentences are too few to hold {config.valid_rows} of them out; give "
            "more, or lower valid_rows"
        )
    plan = {**asked, "found": found, "wanted": wanted, "dtype": config.translate.dtype}
    how = f"translating {wanted:,} of {found:,} sentences"
    if isinstance(config.teacher, str):
        folder = model_folder(config.teacher)
        speed, dtype = probe(folder, sample(_sentences(text), PROBED, of=found), threads)
        plan |= {"per_second": speed, "dtype": dtype if plan["dtype"] == "auto" else plan["dtype"]}
        how += f", {speed:,.0f} a second: about {wanted / speed / 60:,.0f} minutes"
        if config.translate.strategy != "greedy":
            how += f", and with {config.translate.strategy} a few times that"
    write_json(path, plan)
    console.print(f"{how}; then {config.train.steps:,} updates", highlight=False, soft_wrap=True)
    return plan


def _identity(teacher: str | EndpointConfig) -> dict[str, str]:
    """Say exactly which teacher it is."""
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
        answers = ask_all(config.teacher, sentences, out, progress=console.is_terminal)
        return Translations(answers, [])
    if out.is_dir():
        return Translations.open(out)
    values = {
        "folder": str(work / "sentences"),
        "train": {"source": [str(sentences)]},
        "valid_rows": config.valid_rows,
        "tokenizer": {"folder": str(model_folder(config.teacher))},
        "clean": {"max_tokens": config.clean.max_tokens, "on_bad_text": "drop"},
    }
    data = build_config(PrepareConfig, values, prefix="data.")
    prepared = prepare(data, task="translation", progress=console.is_terminal)
    distill(
        config.teacher,
        prepared.folder,
        out,
        dtype=plan["dtype"],
        threads=threads,
        progress=console.is_terminal,
        **config.translate.options,
    )
    return Translations.open(out)


def _text(config: StudentConfig) -> dict[Path, int | None]:
    """Find the files of text, and how much of each is taken."""
    return {corpus_root(config).path(name): most for name, most in config.text.items()}


def corpus_root(config: StudentConfig) -> PrepareConfig:
    """Return what knows where a file lies that is named in the config."""
    return PrepareConfig(folder=config.folder, root=config.root)


def _sentences(text: Mapping[Path, int | None]) -> Iterator[str]:
    for path, most in text.items():
        yield from islice(read_sentences([path]), most)
