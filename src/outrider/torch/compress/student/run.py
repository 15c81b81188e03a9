"""From a teacher and text to a student: translate, shrink, train; each stage is kept once done.

The student as it is shipped: int8, some of it int4, with card and tokenizer.
"""

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from outrider.config import build_config
from outrider.data.config import PrepareConfig
from outrider.data.lines import text_lines
from outrider.data.prepare import prepare
from outrider.data.prepared import Prepared
from outrider.errors import ConfigError, DataError
from outrider.files import locked, read_json, write_json
from outrider.files.hub import model_folder
from outrider.formats.folder import weights_of
from outrider.formats.quantised import EMBEDDINGS, FEEDFORWARD
from outrider.run_config import RunConfig
from outrider.torch.compress.student.compare import Test, compare
from outrider.torch.compress.student.config import StudentConfig
from outrider.torch.compress.student.shrink import shrink
from outrider.torch.compress.student.translations import Translations, corpus_root, translate
from outrider.torch.export import export_copy
from outrider.torch.training.run import train_run

__all__ = ["train_student", "write_small"]


def write_small(
    model: Path, out: Path, int4: Collection[str], pairs: Path, console: Console
) -> Path:
    """Write a model in few bits, unless that was done.

    Args:
        model: The trained student, in float32.
        out: The folder to write.
        int4: Which parts are int4.
        pairs: Prepared pairs in its words, for feed-forwards to be rounded on.
        console: Where to say what that costs.
    """
    record = out.with_suffix(".json")
    made = {"weights": weights_of(model), "int4": sorted(int4)}
    if out.is_dir() and record.is_file() and read_json(record, error=DataError) == made:
        return out
    rounded = out.with_name("rounded")
    for old in (out, rounded):
        shutil.rmtree(old, ignore_errors=True)
    if FEEDFORWARD in int4:
        shrink(model, rounded, int4=[FEEDFORWARD], data=pairs, console=console)
        for path in model.iterdir():
            if path.is_file() and not (rounded / path.name).exists():
                shutil.copyfile(path, rounded / path.name)
    export_copy(rounded if rounded.is_dir() else model, out, dtype="int8", int4=int4)
    shutil.rmtree(rounded, ignore_errors=True)
    write_json(record, made)
    return out


START, TEACHER, PAIRS = "start", "teacher", "pairs"


def train_student(
    config: StudentConfig, *, threads: int | None = None, console: Console | None = None
) -> Path:
    """Train a student to its end and return its folder in int8, which is what is used and shipped.

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
        translated = translate(config, work, threads=threads, console=console)
    with _alone(folder):
        _shrink(config, folder, translated, console)
    model = train_run(_run(config, folder, translated), console=console)
    with _alone(folder):
        small = write_small(model, folder / "small", config.shape.int4, folder / PAIRS, console)
    if tests:
        assert isinstance(config.teacher, str), "others have no tests"
        compare(model_folder(config.teacher), small, tests, seed=config.seed, console=console)
    return small


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    busy = DataError(f"{folder}: another process is at work there; wait for it")
    with locked(folder / ".student.lock", busy):
        yield


def _shrink(
    config: StudentConfig, folder: Path, translated: Translations, console: Console
) -> None:
    """Write what the student starts from and, if it is asked for every word, its teacher."""
    shape, words = config.shape, config.shape.words
    asked, path = shape.model_dump(mode="json"), folder / "shape.json"
    if path.is_file() and read_json(path, error=DataError) != asked:
        work = translated.train[0].parent.parent
        fix = f"choose another folder (work: {work} keeps the translations)"
        raise DataError(f"{path}: was begun with another shape; {fix}")
    if (folder / START).is_dir() and (not config.word_level or (folder / TEACHER).is_dir()):
        return
    sides = {"encoder": shape.encoder, "decoder": shape.decoder}
    layers = {side: kept for side, kept in sides.items() if kept is not None}
    numbers = (words, shape.feedforward, *layers.values())
    counted = any(isinstance(number, int) for number in numbers)
    data = _counted(config, folder, translated).folder if counted else None
    if not (folder / START).is_dir():
        with _under_shape():
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
    write_json(path, asked)
    if config.word_level and not (folder / TEACHER).is_dir():
        assert isinstance(config.teacher, str), "others say no probabilities"
        cut = words is not None or config.start is not None
        like = folder / START if cut else None
        try:
            shrink(config.teacher, folder / TEACHER, like=like, positions=shape.positions)
        except ConfigError as error:
            message = f"the teacher and what the student begins as do not go together: {error}"
            raise ConfigError("word_level", message) from None


def _start(config: StudentConfig) -> str:
    """Name what the student begins as."""
    start = config.start or config.teacher
    assert isinstance(start, str)
    return start


def _counted(config: StudentConfig, folder: Path, translated: Translations) -> Prepared:
    """Return the translations in words of what the student begins as."""
    if config.start is None and translated.prepared is not None:
        return translated.prepared
    values = {
        "folder": str(folder / "counted"),
        **translated.corpora(config.valid_rows),
        "tokenizer": {"folder": _start(config)},
        "clean": config.clean.model_dump(mode="json"),
    }
    return prepare(build_config(PrepareConfig, values, prefix="data."), progress=False)


@contextmanager
def _under_shape() -> Iterator[None]:
    """Say under which key of `shape` stands what cannot be."""
    try:
        yield
    except ConfigError as error:
        key = error.key.removeprefix("keep_layers.")
        raise ConfigError(f"shape.{key}", str(error).removeprefix(f"{error.key}: ")) from None


def _run(config: StudentConfig, folder: Path, translated: Translations) -> RunConfig:
    """Describe the training: the teacher's text, cut by the student's own tokenizer."""
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
    """Find the test sets, before hours are spent."""
    root, found = corpus_root(config), {}
    for name, test in config.tests.items():
        source, reference = root.path(test.source), root.path(test.reference)
        counts = [len(text_lines(path)) for path in (source, reference)]
        if counts[0] != counts[1]:
            message = f"{source} has {counts[0]} lines and {reference} {counts[1]}"
            raise ConfigError(f"tests.{name}.reference", f"{message}; line n translates line n")
        found[name] = Test(source, reference, test.tokenize, test.split)
    return found
