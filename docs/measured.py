"""Tables of measurements, generated from the files in results/."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from home import RESULTS, machine_words

from outrider_lab.bench.compare.summary import failures, table, title
from outrider_lab.bench.decode.table import heading, shown_columns, shown_row, split_table

MEASURED = "<!-- every attention measured -->"
COSTS = "<!-- block costs -->"
DECODED = re.compile(r"<!-- decode table ([\w-]+) -->")
COMPARED = re.compile(r"<!-- comparison ([\w-]+) -->")
IMAGES = Path(__file__).parent / "images"
WHO = ("engine", "mode", "threads")
SPEED = (
    *("sentences_per_second", "tokens_per_second", "latency_p50_ms", "latency_p95_ms"),
    *("ratio_to_ctranslate2_int8", "best_ratio_to_ctranslate2_int8", "ratio_to_hf_generate"),
)
QUALITY = (
    *("bleu", "chrf", "identical_to_own_greedy", "identical_to_reference"),
    *("ratio_to_bare_engine", "peak_rss_mib", "load_seconds"),
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the markers of tables."""
    for mark, write in ((MEASURED, _measured), (COSTS, _costs)):
        if mark in markdown:
            markdown = markdown.replace(mark, "\n".join(write()))
    markdown = DECODED.sub(lambda found: "\n".join(_decoded(found[1])), markdown)
    return COMPARED.sub(lambda found: "\n".join(_compared(found[1])), markdown)


def _measured() -> Iterator[str]:
    """Time and memory of every attention."""
    result = _result("attention")
    rows = []
    for kind, found in result["kinds"].items():
        cache = found["cache_bytes_64k"]
        figures = (
            _figure(found["slope"]),
            _figure(found["speedup_16k"], "x"),
            _figure(found["memory_ratio_16k"], "x"),
            "" if cache is None else f"{cache / 2**20:.2f} MiB",
            "" if found["faster_from"] is None else f"{found['faster_from']:,}",
        )
        rows.append((f"[`{kind}`](attention/{kind}.md)", *figures))
    head = ("kind", "slope of time", "speed at 16k", "memory at 16k", "cache at 64k", "faster from")
    yield from _table(head, rows)
    setting = result["setting"]
    yield (
        f"{setting['heads']} heads of width {setting['width']}, {setting['dtype']}, forward and "
        f"backward, {_threads(result)}."
    )


def _compared(name: str) -> Iterator[str]:
    """Write scores and costs, and show the picture of a comparison."""
    result = _result(f"compare-{name}")
    heads, rows = table(result)
    yield f"**{title(result)}**\n"
    right = [place for place, head in enumerate(heads) if " at " in head]
    if right:
        yield "Outputs that are exactly right, by length of the input:\n"
    scores = [0, *(p for p, head in enumerate(heads) if p in right or head in ("BLEU", "loss"))]
    scores += [p for p, head in enumerate(heads) if head == "seeds that learn"]
    costs = [0, *(p for p in range(1, len(heads)) if p not in scores and heads[p] != "updates")]
    for places in (scores, costs):
        names = tuple(heads[place].split(" at ")[-1] for place in places)
        yield from _table(names, [tuple(_cell(row[place]) for place in places) for row in rows])
    yield from (f"- {_cell(line)}" for line in failures(result))
    yield f"\n`results/compare-{name}.json`: {_threads(result)}.\n"
    if (IMAGES / f"compare-{name}.png").is_file():
        yield f"![{title(result)}](images/compare-{name}.png)\n"


def _costs() -> Iterator[str]:
    """Times of a step, a block and a draft, and the tokens per round to break even."""
    measured = _result("block-costs")
    head = ("backend", "threads", "step", "block of 9", "draft of 8", "tokens a round must bring")
    rows = [
        (
            row["backend"],
            str(row["threads"]),
            *(f"{row[key]:.2f} ms" for key in ("step", "block", "draft")),
            f"{row['even']:.1f}",
        )
        for row in measured["rows"]
    ]
    yield from _table(head, rows)


def _decoded(name: str) -> Iterator[str]:
    """Speeds of all engines from a result of `outrider lab bench decode`, one tab per batch."""
    result = _result(name)
    if (IMAGES / f"{name}.png").is_file():
        yield f"![Speed of every engine by batch size](images/{name}.png)\n"
    yield f"{heading(result)}\n"
    columns = shown_columns(result)
    for batch, order in dict.fromkeys((row["batch"], row["order"]) for row in result["rows"]):
        rows = [row for row in result["rows"] if (row["batch"], row["order"]) == (batch, order)]
        yield f'=== "Batch {batch}{f", {order}" if batch > 1 else ""}"\n'
        for line in _tab(rows, columns):
            yield f"    {line}" if line else ""
    if result["missing"]:
        yield "Not measured:\n"
        yield from (f"- {one['engine']}: {one['reason']}" for one in result["missing"])
        yield ""


def _tab(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> Iterator[str]:
    for part in (SPEED, QUALITY):
        chosen = {key: words for key, words in columns.items() if key in (*WHO, *part)}
        if len(chosen) > len(WHO):
            shown = [tuple(map(_cell, shown_row(row, chosen))) for row in rows]
            yield from _table(tuple(chosen.values()), shown)
    yield from split_table(rows)


def _threads(result: dict[str, Any]) -> str:
    threads = result["machine"]["threads"]
    return (
        f"{threads} thread{'s' if threads > 1 else ''} of {machine_words(result['machine'])}, "
        f"torch {result['versions']['torch']}"
    )


def _result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _figure(value: float | None, unit: str = "") -> str:
    return "" if value is None else f"{value:.2f}{unit}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    figures = [all(row[place][:1] in "-0123456789" for row in rows) for place in range(len(head))]
    yield f"|{'|'.join('---:' if number else '---' for number in figures)}|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
