"""From a teacher and text to a student: translate, shrink, train; each stage is kept once done."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.accelerate.plan import probe
from outrider.accelerate.text import read_sentences, sample, write_sample
from outrider.config import build_config
from outrider.data.config import PrepareConfig
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared, open_prepared
from outrider.errors import ConfigError, DataError
from outrider.evaluation.evaluate import read_lines
from outrider.files import locked, read_json, write_json
from outrider.hub import model_folder
from outrider.runtime.distill import distill, weights_of
from outrider.student.compare import Test, compare
from outrider.student.config import StudentConfig
from outrider.student.shrink import shrink
from outrider.training.run import train_run
from outrider.training.run_config import RunConfig

__all__ = ["train_student"]

PLAN, START, TEACHER = "plan.json", "start", "teacher"
PROBED = 48
"""Sentences that are translated to see how fast that is."""


def train_student(
    config: StudentConfig, *, threads: int | None = None, console: Console | None = None
) -> Path:
    """Train a student to its end and return its model folder.

    Args:
        config: The student; `outrider.config.load_config(StudentConfig, path)` reads one.
        threads: CPU threads of the teacher.
        console: Where to report; by default nowhere.
    """
    console = console or Console(quiet=True)
    folder = Path(config.folder)
    work = folder / "work" if config.work is None else Path(config.work)
    tests = _tests(config)
    with _alone(work):
        plan = _settle(config, work, threads, console)
        translated = _translate(config, work, plan, threads, console)
    with _alone(folder):
        _shrink(config, folder, translated)
    model = train_run(_run(config, folder, translated), console=console)
    if tests:
        compare(model_folder(config.teacher), model, tests, seed=config.seed, console=console)
    return model


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    busy = DataError(f"{folder}: another process is at work there; wait for it")
    with locked(folder / ".student.lock", busy):
        yield


def _settle(
    config: StudentConfig, work: Path, threads: int | None, console: Console
) -> dict[str, Any]:
    """Return what was settled when this student was begun, or settle it, and say how long."""
    text = _text(config)
    asked = {
        "weights": weights_of(model_folder(config.teacher)),
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
    folder = model_folder(config.teacher)
    speed, dtype = probe(folder, sample(_sentences(text), PROBED, of=found), threads)
    if config.translate.dtype != "auto":
        dtype = config.translate.dtype
    plan = {**asked, "found": found, "wanted": wanted, "per_second": speed, "dtype": dtype}
    write_json(path, plan)
    greedy = config.translate.strategy == "greedy"
    slower = "" if greedy else f", and with {config.translate.strategy} a few times that"
    console.print(
        f"translating {wanted:,} of {found:,} sentences, {speed:,.0f} a second: about "
        f"{wanted / speed / 60:,.0f} minutes{slower}; then {config.train.steps:,} updates",
        highlight=False,
        soft_wrap=True,
    )
    return plan


def _translate(
    config: StudentConfig,
    work: Path,
    plan: dict[str, Any],
    threads: int | None,
    console: Console,
) -> Prepared:
    out = work / "translated"
    if out.is_dir():
        return open_prepared(out)
    sentences = work / "sentences.txt"
    if not sentences.is_file():
        write_sample(_sentences(_text(config)), sentences, plan["wanted"], of=plan["found"])
    values = {
        "folder": str(work / "sentences"),
        "train": {"source": [str(sentences)]},
        "valid_rows": config.valid_rows,
        "tokenizer": {"folder": str(model_folder(config.teacher))},
        "clean": {"max_tokens": config.clean.max_tokens, "on_bad_text": "drop"},
    }
    data = build_config(PrepareConfig, values, prefix="data.")
    prepared = prepare(data, task="translation", progress=console.is_terminal)
    return distill(
        config.teacher,
        prepared.folder,
        out,
        dtype=plan["dtype"],
        threads=threads,
        progress=console.is_terminal,
        **config.translate.options,
    )


def _shrink(config: StudentConfig, folder: Path, translated: Prepared) -> None:
    """Write what the student starts from and, if it is asked for every word, its teacher."""
    shape, words = config.shape, config.shape.words
    data = None if words is None else translated.folder
    asked, path = shape.model_dump(mode="json"), folder / "shape.json"
    if path.is_file() and read_json(path, error=DataError) != asked:
        fix = f"choose another folder (work: {translated.folder.parent} keeps the translations)"
        raise DataError(f"{path}: was begun with another shape; {fix}")
    sides = {"encoder": shape.encoder, "decoder": shape.decoder}
    layers = {side: kept for side, kept in sides.items() if kept is not None}
    for name, kept in ((START, layers), (TEACHER, None)):
        if (name == START or config.word_level) and not (folder / name).is_dir():
            with _under_shape():
                shrink(config.teacher, folder / name, layers=kept, words=words, data=data)
            write_json(path, asked)


@contextmanager
def _under_shape() -> Iterator[None]:
    """Say under which key of `shape` stands what cannot be."""
    try:
        yield
    except ConfigError as error:
        key = error.key.removeprefix("keep_layers.")
        raise ConfigError(f"shape.{key}", str(error).removeprefix(f"{error.key}: ")) from None


def _run(config: StudentConfig, folder: Path, translated: Prepared) -> RunConfig:
    """Describe the training: the teacher's text, cut by the student's own tokenizer."""

    def pairs(split: str) -> dict[str, Any]:
        shards = translated.manifest.splits[split].shards
        files = [str(translated.folder / shard.name) for shard in shards]
        return {"pairs": files, "source_column": "source", "target_column": "target"}

    freeze = config.shape.freeze
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
                "folder": str(folder / "pairs"),
                "train": pairs("train"),
                "valid": pairs("valid"),
                "tokenizer": {"folder": str(folder / START)},
                "clean": config.clean.model_dump(mode="json"),
            },
            "model": {
                "type": "seq2seq",
                "start": str(folder / START),
                "dropout": config.dropout,
                **({} if freeze is None else {"freeze": list(freeze)}),
            },
            "train": train,
        },
    )


def _text(config: StudentConfig) -> dict[Path, int | None]:
    """Find the files of text, and how much of each is taken."""
    return {_root(config).path(name): most for name, most in config.text.items()}


def _tests(config: StudentConfig) -> dict[str, Test]:
    """Find the test sets, before hours are spent."""
    root, found = _root(config), {}
    for name, test in config.tests.items():
        source, reference = root.path(test.source), root.path(test.reference)
        counts = [len(read_lines(path)) for path in (source, reference)]
        if counts[0] != counts[1]:
            message = f"{source} has {counts[0]} lines and {reference} {counts[1]}"
            raise ConfigError(f"tests.{name}.reference", f"{message}; line n translates line n")
        found[name] = Test(source, reference, test.tokenize, test.split)
    return found


def _root(config: StudentConfig) -> PrepareConfig:
    """Return what knows where a file lies that is named in the config."""
    return PrepareConfig(folder=config.folder, root=config.root)


def _sentences(text: Mapping[Path, int | None]) -> Iterator[str]:
    for path, most in text.items():
        yield from islice(read_sentences([path]), most)
