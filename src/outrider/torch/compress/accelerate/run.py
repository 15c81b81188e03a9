"""The stages of an acceleration: translate, choose the drafter's shape and the number of updates,
train, measure on held-out sentences, and write a report.
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from transformers import set_seed

from outrider.backends.native import default_threads
from outrider.bench import bench, choose_lines
from outrider.data.prepared import Prepared, open_prepared
from outrider.errors import DataError, MissingExtraError, ModelError
from outrider.files import locked, read_json, working_folder, write_json, write_text
from outrider.files.hub import model_folder
from outrider.run_config import RunConfig
from outrider.runtime.provenance import origin
from outrider.show.palette import INK, QUIET, TEAL, load_pyplot, save_figure, style_axes
from outrider.torch.compress.accelerate.plan import (
    HELD_OUT,
    Plan,
    distill_sentences,
    load_or_make_plan,
    read_sentences,
    write_sample,
)
from outrider.torch.models import load_config
from outrider.torch.training.batches import Deal, count_tokens
from outrider.torch.training.kinds import kind_of
from outrider.torch.training.log import read_log
from outrider.torch.training.precision import choose_precision
from outrider.torch.training.run import train_run
from outrider.torch.training.validation import valid_texts

TITLE = "## How much faster"


def write_report(
    folder: Path, plan: Plan, run: RunConfig, measured: dict[str, Any], seconds: dict[str, float]
) -> None:
    """Write `accelerate.json`, `accelerate.png`, and a section of `README.md`."""
    curve, values = _curve(run), run.model_dump(mode="json")
    report = {
        # File names without their folders, so that the report can be moved.
        "plan": asdict(plan)
        | {
            "model": Path(plan.model).name,
            "text": {Path(name).name: digest for name, digest in plan.text.items()},
        },
        "drafter": values["model"] | {"target": Path(plan.model).name},
        "train": values["train"],
        "minutes": {name: round(elapsed / 60, 2) for name, elapsed in seconds.items()},
        "curve": curve,
        **measured,
    }
    write_json(folder / "accelerate.json", report)
    path = folder / "README.md"
    card = path.read_text(encoding="utf-8") if path.is_file() else f"# {run.name}\n"
    write_text(path, f"{card.rstrip()}\n\n{_section(plan, report)}")
    try:
        _draw(curve, measured["rows"], folder / "accelerate.png")
    except MissingExtraError:  # no matplotlib
        return


def gain(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line about the speed-up by drafts, for single sentences on one thread."""
    first = [row for row in rows if (row["batch"], row["threads"]) == (1, 1)]
    speeds = {row["mode"]: row["sentences_per_second"] for row in first}
    if not {"ar", "tandem"} <= speeds.keys():
        return "drafting could not be measured here; see accelerate.json"
    times = speeds["tandem"] / speeds["ar"]
    more = "" if times > 1 else "; no gain yet, more --minutes may help"
    return f"one sentence at a time, with drafts: {times:.2f} times as fast as without{more}"


def _curve(run: RunConfig) -> list[dict[str, float]]:
    """Return tokens per round by minutes of training."""
    points, minutes = [], 0.0
    for record in read_log(Path(run.folder) / "log.jsonl"):
        minutes = record.get("seconds", 60 * minutes) / 60
        if record["event"] == "evaluation" and "tokens_per_round" in record:
            rounds = round(record["tokens_per_round"], 3)
            points.append(
                {"step": record["step"], "minutes": round(minutes, 2), "tokens_per_round": rounds}
            )
    return points


def _section(plan: Plan, report: dict[str, Any]) -> str:
    elapsed = ", ".join(f"{name} {took:,.1f}" for name, took in report["minutes"].items())
    lines = [
        TITLE,
        "",
        f"`outrider accelerate` trained the drafter on the model's own translations of "
        f"{plan.sentences:,} sentences. Minutes: {elapsed}.",
        "",
        "| batch | threads | engine | sentences a second | tokens a round | same text as greedy |",
        "|---:|---:|---|---:|---:|---:|",
    ]
    for row in report["rows"]:
        rounds = "" if row["tokens_per_round"] is None else f"{row['tokens_per_round']:.2f}"
        same = row["identical_to_own_greedy"]
        shown = "" if same is None else f"{100 * same:.1f} %"
        lines.append(
            f"| {row['batch']} | {row['threads']} | {row['engine']} {row['mode']} | "
            f"{row['sentences_per_second']:,.1f} | {rounds} | {shown} |"
        )
    machine = report["machine"]
    name, sets = machine.get("processor", ""), ", ".join(machine.get("instructions", []))
    return "\n".join([*lines, "", f"Machine: {name} ({sets}).", ""])


def _draw(curve: list[dict[str, float]], rows: list[dict[str, Any]], path: Path) -> None:
    pyplot = load_pyplot("the picture of an acceleration")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.0, 3.2), layout="constrained")
    try:
        left.plot(
            [point["minutes"] for point in curve],
            [point["tokens_per_round"] for point in curve],
            color=TEAL,
            marker="o",
        )
        left.set_xlabel("minutes of training", color=QUIET)
        left.set_title("tokens a round", loc="left", color=INK, fontsize=11)
        single = [row for row in rows if row["threads"] == 1]
        batches = sorted({row["batch"] for row in single})
        colours = {"tandem": TEAL, "ar": QUIET}
        names = list(dict.fromkeys(row["mode"] for row in single))
        for number, mode in enumerate(names):
            speeds = {
                row["batch"]: row["sentences_per_second"] for row in single if row["mode"] == mode
            }
            offset = 0.8 * (number - len(names) / 2 + 0.5) / len(names)
            right.bar(
                [place + offset for place in range(len(batches))],
                [speeds.get(batch, 0.0) for batch in batches],
                width=0.8 / len(names),
                color=colours.get(mode, INK),
                label=mode,
            )
        right.set_xticks(range(len(batches)), [f"batch {batch}" for batch in batches])
        right.set_title("sentences a second, one thread", loc="left", color=INK, fontsize=11)
        right.legend(frameon=False, fontsize=8)
        for axes in (left, right):
            style_axes(axes, labelsize=9)
        save_figure(figure, path, dpi=150, facecolor="white", pil_kwargs={"optimize": True})
    finally:
        pyplot.close(figure)


SENTENCES = 128


def measure(
    folder: Path, target: Path, prepared: Prepared, threads: int | None, console: Console
) -> dict[str, Any]:
    """Decode held-out sentences at several batch sizes, on one thread and on all."""
    held_out = prepared.folder.parent / "held-out.txt"
    write_text(held_out, "".join(f"{line}\n" for line in valid_texts(prepared)[0]))
    console.print("measuring on held-out sentences", highlight=False)
    result = bench(
        {folder.name: folder},
        choose_lines(held_out, SENTENCES),
        threads=sorted({1, threads or default_threads()}),
        modes=("ar", "tandem"),  # a drafter of a few slots writes no complete text in parallel
    )
    return result | {"target": target.name, **origin(folder)}


FILE = "run.json"
COVERED = 0.98
"""Share of the translated text that the shortlist must cover; other tokens cannot be drafted."""
SHORTLIST_STEP = 512
BATCH_TOKENS = 512
"""Small updates learn faster: from the same 43,000 tokens of OPUS-MT output a drafter reached 1.31
tokens per round, with twice as many tokens per update 1.21.
"""
BLOCK = 4
"""Slots of a draft. After so little training one or two tokens are right, so more slots would be
trained but hardly used.
"""
ANCHORS = 10
"""Blocks per row: with 16, the target's own pass takes 40 % of an update."""
DECAY = 0.7
"""Weight of a slot relative to the previous one, which is used more often."""
EPOCHS = 16
"""Maximum passes over the text; beyond this, more text helps more than more time."""
EVALUATIONS = 16
PATIENCE = 4
OVERHEAD = 1.15
"""Time of an update relative to its passes: optimizer, evaluations, checkpoints."""


def load_or_make_run(
    plan: Plan, target: Path, prepared: Prepared, work: Path, console: Console
) -> RunConfig:
    """Return the run of an earlier start, or make one by timing a few batches."""
    path = work / FILE
    if path.is_file():
        return RunConfig.model_validate(read_json(path, error=DataError))
    config = _draft(target, prepared, work)
    seconds, precision = _time(config, prepared)
    affordable = int(60 * plan.training_minutes / (OVERHEAD * seconds))
    rows = prepared.manifest.splits["train"]
    longest = int(EPOCHS * (rows.target_tokens + rows.rows) / BATCH_TOKENS) + 1
    steps = max(EVALUATIONS, min(affordable, longest))
    interval = max(1, steps // EVALUATIONS)
    values = config.model_dump(mode="json")
    values["train"] |= {
        "steps": steps,
        "warmup": min(100, steps // 10),
        "evaluate_every": interval,
        "save_every": interval,
        "precision": precision,
    }
    run = RunConfig.model_validate(values)
    write_json(path, run.model_dump(mode="json"))
    minutes = OVERHEAD * seconds * steps / 60
    console.print(
        f"training a drafter: {steps:,} updates of {1000 * seconds:,.0f} ms, about "
        f"{minutes:,.0f} minutes; it stops early when acceptance no longer rises",
        highlight=False,
        soft_wrap=True,
    )
    return run


def _draft(target: Path, prepared: Prepared, work: Path) -> RunConfig:
    target_config = load_config(target)
    last = target_config.decoder_depth - 1
    return RunConfig.model_validate(
        {
            "name": target.name,
            "folder": str(work / "run"),
            "seed": 1,
            "data": {"folder": str(prepared.folder)},
            "model": {
                "type": "drafter",
                "target": str(target),
                "copy_layers": True,
                "taps": sorted({last // 2, max(0, last - 1), last}),
                "rank": min(256, target_config.hidden_size),
                "candidates": 32,
                "shortlist": _shortlist(prepared),
                "whole": False,
                "block": BLOCK,
                "train_block": BLOCK,
                "anchors": ANCHORS,
                "decay": DECAY,
                "soft_labels": True,
            },
            "train": {
                "batch_tokens": BATCH_TOKENS,
                "learning_rate": 0.0012,
                "schedule": "cosine",
                "label_smoothing": 0.0,
                "stop_metric": "tokens_per_round",
                "patience": PATIENCE,
                "average": 3,
                "log_every": 20,
            },
        }
    )


def _shortlist(prepared: Prepared) -> int:
    """Count the most frequent tokens that cover COVERED of the text; 0 if that is most of them."""
    ordered = np.sort(count_tokens(prepared, "target_ids"))[::-1].cumsum()
    needed = int(np.searchsorted(ordered, COVERED * ordered[-1])) + 1
    rounded = -(-needed // SHORTLIST_STEP) * SHORTLIST_STEP
    return rounded if rounded < len(ordered) else 0


def _time(config: RunConfig, prepared: Prepared) -> tuple[float, str]:
    """Return the seconds of an update, and the faster precision."""
    set_seed(config.seed)
    kind = kind_of(config)
    model = kind.build(prepared)
    batch = next(iter(kind.stream(model, prepared, Deal())))
    choice = choose_precision(model, kind.training_objective, batch.tensors)
    return choice.seconds[choice.precision], choice.precision


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
