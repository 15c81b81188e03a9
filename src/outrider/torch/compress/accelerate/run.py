"""The stages of an acceleration."""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console

from outrider.data.prepared import Prepared, open_prepared
from outrider.errors import DataError, ModelError
from outrider.files import locked, read_json, working_folder, write_json
from outrider.files.hub import model_folder
from outrider.torch.compress.accelerate.plan import (
    HELD_OUT,
    Plan,
    distill_sentences,
    load_or_make_plan,
    read_sentences,
    write_sample,
)
from outrider.torch.compress.accelerate.report import gain, measure, write_report
from outrider.torch.compress.accelerate.train import load_or_make_run
from outrider.torch.training.run import train_run

MAX_TOKENS = 128


def accelerate(
    model: str | Path,
    text: Sequence[Path],
    out: Path,
    *,
    minutes: float = 60.0,
    threads: int | None = None,
    console: Console | None = None,
) -> Path:
    """Train a drafter for a model and write both to a new folder, with a report.

    Args:
        model: A model folder, an `.argosmodel` file or a Hub name.
        text: Files of text in its source language, plain or .gz.
        out: The folder to write; the folder `out` + `.work` holds unfinished stages.
        minutes: Approximate time limit. Text and training are shortened to fit.
        threads: CPU threads.
        console: Where to report; by default nowhere.
    """
    console = console or Console(quiet=True)
    if out.exists():
        raise ModelError(f"{out}: exists already; name a new folder")
    work = out.with_name(f"{out.name}.work")
    work.mkdir(parents=True, exist_ok=True)
    busy = DataError(f"{work}: another process is using it; wait for it")
    with locked(work / ".lock", busy):
        clock = _Clock(work / "seconds.json")
        with clock.stage("plan"):
            plan = load_or_make_plan(model, text, work, minutes=minutes, threads=threads)
        _announce(plan, console)
        with clock.stage("translate"):
            prepared = _translate(plan, text, work, console)
        target = model_folder(model)
        if threads is not None:
            torch.set_num_threads(threads)
        with clock.stage("train"):
            run = load_or_make_run(plan, target, prepared, work, console)
            folder = train_run(run, console=console)
        with clock.stage("measure"):
            measured = measure(folder, target, prepared, threads, console)
        with working_folder(out) as draft:
            shutil.copytree(folder, draft, dirs_exist_ok=True)
            write_report(draft, plan, run, measured, clock.seconds)
        console.print(gain(measured["rows"]), highlight=False, soft_wrap=True)
    shutil.rmtree(work, ignore_errors=True)
    return out


class _Clock:
    """Seconds of each stage, summed over all starts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = read_json(path) if path.is_file() else {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block, also if it is interrupted."""
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed
            write_json(self.path, self.seconds)


def _announce(plan: Plan, console: Console) -> None:
    share = "all" if plan.sentences == plan.found else f"{plan.sentences:,} of"
    console.print(
        f"translating {share} {plan.found:,} sentences, {plan.per_second:,.0f} a second: about "
        f"{plan.translating_minutes:,.0f} minutes; then at most {plan.training_minutes:,.0f} of "
        "training",
        highlight=False,
        soft_wrap=True,
    )


def _translate(plan: Plan, text: Sequence[Path], work: Path, console: Console) -> Prepared:
    out = work / "translated"
    if out.is_dir():
        return open_prepared(out)
    sentences = work / "sentences.txt"
    if not sentences.is_file():
        write_sample(read_sentences(text), sentences, plan.sentences, of=plan.found)
    return distill_sentences(
        plan.model,
        work,
        valid_rows=HELD_OUT,
        max_tokens=MAX_TOKENS,
        dtype=plan.dtype,
        threads=plan.threads,
        progress=console.is_terminal,
    )
