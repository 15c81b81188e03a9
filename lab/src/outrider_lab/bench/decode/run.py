"""Run `bench decode` on a model folder and return its result."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from outrider.data.lines import text_lines
from outrider.errors import DataError, ModelError
from outrider.files.hub import model_folder
from outrider.text.tokenizer import load_tokenizer
from outrider.torch.models import Seq2Seq, load_model
from outrider_lab.bench.decode.isa import environment
from outrider_lab.bench.decode.plan import Setting, plan_engines
from outrider_lab.bench.decode.rows import decode_rows
from outrider_lab.bench.decode.sentences import SENTENCES
from outrider_lab.bench.decode.speed import UNLIMITED, Limits, measure_speeds

LONGEST = 128
"""Maximum tokens of a line; few models are trained on longer ones."""


class Sentences(NamedTuple):
    """The sentences to translate."""

    sources: list[str]
    references: list[str] | None
    lengths: list[int]
    """In tokens of the source."""


def choose_sentences(
    model: Path, source: Path | None, reference: Path | None, *, most: int
) -> Sentences:
    """Read sentences, or take the built-in ones, and keep at most `most`, evenly spaced.

    Very long lines are left out; all others are translated without splitting, by every engine.
    """
    sources = list(SENTENCES) if source is None else text_lines(source)
    references = None if reference is None else text_lines(reference)
    if references is not None and len(references) != len(sources):
        raise DataError(
            f"{source} has {len(sources)} lines and {reference} has {len(references)}; "
            "line n of one must be the translation of line n of the other"
        )
    lengths = list(map(len, load_tokenizer(model).encode_batch(sources)))
    fit = [n for n, length in enumerate(lengths) if 0 < length <= LONGEST]
    if not fit:
        raise DataError(f"{source}: holds no sentence of 1 to {LONGEST} tokens")
    kept = fit if len(fit) <= most else [fit[at * len(fit) // most] for at in range(most)]
    return Sentences(
        [sources[n] for n in kept],
        None if references is None else [references[n] for n in kept],
        [lengths[n] for n in kept],
    )


def bench_model(
    model: Path,
    sentences: Sentences,
    settings: Sequence[Setting],
    *,
    engines: Sequence[str],
    repeats: int,
    shallow: Path | None = None,
    tokenize: str = "auto",
    slow_once: bool = False,
    isa: str | None = None,
    limits: Limits = UNLIMITED,
    expect: Callable[[int], None] = lambda _: None,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure all engines at all settings.

    Args:
        model: Folder of an encoder-decoder.
        sentences: The sentences to translate.
        settings: Batch sizes, orders and threads.
        engines: Names, as in `plan.ENGINES`.
        repeats: Timed rounds.
        shallow: Folder of a model with a shallow decoder, to be measured too.
        tokenize: SacreBLEU's tokenizer; `auto` takes that of the references' script.
        slow_once: Whether slow engines are measured at the first number of threads only.
        isa: The instruction set of all engines; by default each uses its best.
        limits: Time limits.
        expect: Called once with the number of turns.
        report: Called before every turn with a description.
    """
    for folder in (model, shallow):
        _check(folder)
    threads = sorted({count for setting in settings for count in setting.threads})
    report("exporting")
    planned = plan_engines(
        *(model, engines, threads),
        shallow=shallow,
        slow_once=slow_once,
        environment=environment(isa),
    )
    with planned as (plans, missing):
        speeds = measure_speeds(
            plans,
            sentences.sources,
            sentences.lengths,
            settings,
            repeats=repeats,
            limits=limits,
            expect=expect,
            report=report,
        )
    return {
        "task": "decode",
        "sentences": len(sentences.sources),
        "source_tokens": sum(sentences.lengths),
        "repeats": repeats,
        "rows": [
            {"isa": isa, **row}
            for row in decode_rows(speeds, sentences.references, tokenize=tokenize)
        ],
        "missing": [entry._asdict() for entry in [*missing, *speeds.missing]],
    }


def _check(folder: Path | None) -> None:
    if folder is not None and not isinstance(load_model(model_folder(folder)), Seq2Seq):
        raise ModelError(f"{folder}: is a language model; bench decode needs a translation model")
