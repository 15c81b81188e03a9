"""Train a student in stages: translate, shrink, train, export to int8; finished stages are kept."""

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from outrider.config import build_config, keys_under
from outrider.data.config import PrepareConfig
from outrider.data.lines import text_lines
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared, open_prepared
from outrider.errors import ConfigError, DataError
from outrider.files import locked, read_json, write_json
from outrider.files.hub import model_folder
from outrider.formats.folder import weights_of
from outrider.formats.quantised import EMBEDDINGS, FEEDFORWARD
from outrider.run_config import RunConfig
from outrider.torch.compress.accelerate.plan import (
    distill_sentences,
    probe,
    read_plan,
    read_sentences,
    sample,
    write_sample,
)
from outrider.torch.compress.student.compare import Test, compare
from outrider.torch.compress.student.config import StudentConfig
from outrider.torch.compress.student.endpoint import EndpointConfig, translate_remotely
from outrider.torch.compress.student.shrink import shrink
from outrider.torch.export import export_copy
from outrider.torch.training.run import train_run

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


def translate(
    config: StudentConfig, work: Path, *, threads: int | None, console: Console
) -> Translations:
    """Translate the text, resuming an earlier start."""
    plan = _plan(config, work, threads, console)
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


def write_small(
    model: Path, out: Path, int4: Collection[str], pairs: Path, console: Console
) -> Path:
    """Export a model in int8 and int4, unless that was done.

    Args:
        model: The trained student, in float32.
        out: The folder to write.
        int4: Which parts are int4.
        pairs: Prepared pairs in its vocabulary, for rounding feed-forwards.
        console: Where to report the rounding errors.
    """
    path = out.with_suffix(".json")
    record = {"weights": weights_of(model), "int4": sorted(int4)}
    if out.is_dir() and path.is_file() and read_json(path, error=DataError) == record:
        return out
    rounded = out.with_name("rounded")
    for old in (out, rounded):
        shutil.rmtree(old, ignore_errors=True)
    if FEEDFORWARD in int4:
        shrink(model, rounded, int4=[FEEDFORWARD], data=pairs, console=console)
        for file in model.iterdir():
            if file.is_file() and not (rounded / file.name).exists():
                shutil.copyfile(file, rounded / file.name)
    export_copy(rounded if rounded.is_dir() else model, out, dtype="int8", int4=int4)
    shutil.rmtree(rounded, ignore_errors=True)
    write_json(path, record)
    return out


START, TEACHER, PAIRS = "start", "teacher", "pairs"


def train_student(
    config: StudentConfig, *, threads: int | None = None, console: Console | None = None
) -> Path:
    """Train a student and return its folder in int8.

    Args:
        config: The student; `outrider.config.load_config(StudentConfig, path)` reads one.
        threads: CPU threads of the teacher.
        console: Where to report; by default nowhere.
    """
    console = console or Console(quiet=True)
    folder = Path(config.folder)
    work = folder / "work" if config.work is None else Path(config.work)
    tests = _tests(config)
    with _locked(work):
        translated = translate(config, work, threads=threads, console=console)
    with _locked(folder):
        _shrink(config, folder, translated, console)
    model = train_run(_run(config, folder, translated), console=console)
    with _locked(folder):
        small = write_small(model, folder / "small", config.shape.int4, folder / PAIRS, console)
    if tests:
        assert isinstance(config.teacher, str), "a remote teacher has no tests"
        compare(model_folder(config.teacher), small, tests, seed=config.seed, console=console)
    return small


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    busy = DataError(f"{folder}: another process is using it; wait for it")
    with locked(folder / ".student.lock", busy):
        yield


def _shrink(
    config: StudentConfig, folder: Path, translated: Translations, console: Console
) -> None:
    """Write the model the student starts from and, for word-level distillation, its teacher."""
    shape, words = config.shape, config.shape.words
    values, path = shape.model_dump(mode="json"), folder / "shape.json"
    if path.is_file() and read_json(path, error=DataError) != values:
        work = translated.train[0].parent.parent
        fix = f"choose another folder (work: {work} keeps the translations)"
        raise DataError(f"{path}: was started with another shape; {fix}")
    if (folder / START).is_dir() and (not config.word_level or (folder / TEACHER).is_dir()):
        return
    sides = {"encoder": shape.encoder, "decoder": shape.decoder}
    layers = {side: kept for side, kept in sides.items() if kept is not None}
    numbers = (words, shape.feedforward, *layers.values())
    needs_data = any(isinstance(number, int) for number in numbers)
    data = _prepare(config, folder, translated).folder if needs_data else None
    if not (folder / START).is_dir():
        with keys_under("shape", instead_of="keep_layers."):
            shrink(
                _start(config),
                folder / START,
                layers=layers,
                feedforward=shape.feedforward,
                words=words,
                int4=[part for part in shape.int4 if part == EMBEDDINGS],
                positions=shape.positions,
                data=data,
                console=console,
            )
    write_json(path, values)
    if config.word_level and not (folder / TEACHER).is_dir():
        assert isinstance(config.teacher, str), "a remote teacher gives no probabilities"
        cut = words is not None or config.start is not None
        like = folder / START if cut else None
        try:
            shrink(config.teacher, folder / TEACHER, like=like, positions=shape.positions)
        except ConfigError as error:
            message = f"the teacher and the student's start do not match: {error}"
            raise ConfigError("word_level", message) from error


def _start(config: StudentConfig) -> str:
    """Return the model the student starts from."""
    start = config.start or config.teacher
    assert isinstance(start, str)
    return start


def _prepare(config: StudentConfig, folder: Path, translated: Translations) -> Prepared:
    """Prepare the translations with the tokenizer of the student's start."""
    if config.start is None and translated.prepared is not None:
        return translated.prepared
    values = {
        "folder": str(folder / "counted"),
        **translated.corpora(config.valid_rows),
        "tokenizer": {"folder": _start(config)},
        "clean": config.clean.model_dump(mode="json"),
    }
    return prepare(build_config(PrepareConfig, values, prefix="data."), progress=False)


def _run(config: StudentConfig, folder: Path, translated: Translations) -> RunConfig:
    """Return the training run: the teacher's text, encoded by the student's tokenizer."""
    rounded = [part for part in config.shape.int4 if part == EMBEDDINGS]
    freeze = {*(config.shape.freeze or ()), *rounded}
    train = config.train.model_dump(mode="json")
    if config.word_level:
        train |= {"teacher": str(folder / TEACHER), "teacher_share": config.word_level}
    return build_config(
        RunConfig,
        {
            "name": config.name,
            "folder": config.folder,
            "seed": config.seed,
            "attribution": config.attribution,
            "data": {
                "folder": str(folder / PAIRS),
                **translated.corpora(config.valid_rows),
                "tokenizer": {"folder": str(folder / START)},
                "clean": config.clean.model_dump(mode="json"),
            },
            "model": {
                "type": "seq2seq",
                "start": str(folder / START),
                "dropout": config.dropout,
                **({"freeze": sorted(freeze)} if freeze else {}),
            },
            "train": train,
        },
    )


def _tests(config: StudentConfig) -> dict[str, Test]:
    """Check and return the test sets, before the first stage."""
    root, tests = corpus_root(config), {}
    for name, test in config.tests.items():
        source, reference = root.path(test.source), root.path(test.reference)
        counts = [len(text_lines(path)) for path in (source, reference)]
        if counts[0] != counts[1]:
            message = f"{source} has {counts[0]} lines and {reference} {counts[1]}"
            raise ConfigError(f"tests.{name}.reference", f"{message}; line n translates line n")
        tests[name] = Test(source, reference, test.tokenize, test.split)
    return tests
