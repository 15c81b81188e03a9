"""Measure an acceleration on held-out sentences, and write it as JSON, Markdown and a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.backends.native import default_threads
from outrider.bench import bench, choose_lines
from outrider.data.prepared import Prepared
from outrider.errors import MissingExtraError
from outrider.files import write_json, write_text
from outrider.run_config import RunConfig
from outrider.runtime.provenance import origin
from outrider.show.palette import INK, QUIET, TEAL, load_pyplot, save_figure, style_axes
from outrider.torch.compress.accelerate.plan import Plan
from outrider.torch.training.log import read_log
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
