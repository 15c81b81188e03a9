"""The result of `bench decode` as tables: columns, headings and a Markdown page."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

COLUMNS = {
    "engine": "engine",
    "mode": "mode",
    "threads": "threads",
    "sentences_per_second": "sentences/s",
    "tokens_per_second": "tokens/s",
    "latency_p50_ms": "p50 ms",
    "latency_p95_ms": "p95 ms",
    "ratio_to_ctranslate2_int8": "to CT2 int8",
    "best_ratio_to_ctranslate2_int8": "best to best",
    "ratio_to_hf_generate": "to generate",
    "ratio_to_bare_engine": "to bare core",
    "bleu": "BLEU",
    "chrf": "chrF",
    "identical_to_own_greedy": "own greedy",
    "identical_to_reference": "reference",
    "peak_rss_mib": "MiB",
    "load_seconds": "load s",
}
"""Columns and their headings."""
NARROW = {
    "engine": "engine",
    "mode": "mode",
    "threads": "thr.",
    "sentences_per_second": "sent./s",
    "ratio_to_ctranslate2_int8": "to CT2",
    "ratio_to_hf_generate": "to HF",
    "bleu": "BLEU",
    "identical_to_own_greedy": "greedy",
}
"""Columns that fit on a screen."""


def shown_columns(result: dict[str, Any], columns: dict[str, str] = COLUMNS) -> dict[str, str]:
    """Return keys and headings of the columns with values."""
    return {
        key: name
        for key, name in columns.items()
        if any(row[key] is not None for row in result["rows"])
    }


def shown_row(row: dict[str, Any], columns: dict[str, str]) -> list[str]:
    """Format a row; a star marks the better number of threads."""
    shown = [_shown(key, row[key]) for key in columns]
    if row["best_threads"]:
        shown[list(columns).index("threads")] += " *"
    return shown


def _shown(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key.startswith("identical"):
        return f"{value:.1%}"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 or key == "peak_rss_mib" else f"{value:.2f}"


def groups(result: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield groups of rows with a title."""
    for isa, batch, order in dict.fromkeys(map(_group, result["rows"])):
        title = f"batch {batch}" + (f", {order}" if batch > 1 else "")
        title = title if isa is None else f"{isa}, {title}"
        yield title, [row for row in result["rows"] if _group(row) == (isa, batch, order)]


def _group(row: dict[str, Any]) -> tuple[str | None, int, str]:
    return row.get("isa"), row["batch"], row["order"]


def heading(result: dict[str, Any]) -> str:
    """Describe the measurement and the machine in a sentence."""
    machine, versions = result["machine"], result["versions"]
    libraries = ("python", "torch", "transformers", "ctranslate2", "outrider-native")
    named = ", ".join(f"{name} {versions[name]}" for name in libraries if name in versions)
    return (
        f"{result['model']} on {machine['processor']} ({', '.join(machine['instructions'])}; "
        f"{machine['cores']} cores): {result['sentences']} sentences, "
        f"{result['repeats']} repeat{'s' if result['repeats'] > 1 else ''}; "
        f"{named}."
    )


def decode_markdown(result: dict[str, Any]) -> str:
    """Return the result as a Markdown page."""
    columns = shown_columns(result)
    lines = [f"# Decoding speed of {result['model']}", "", heading(result), ""]
    for title, rows in groups(result):
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        lines += _table(columns.values(), [shown_row(row, columns) for row in rows])
        lines += split_table(rows)
    if result["missing"]:
        lines += ["## Not measured", ""]
        lines += [f"- {entry['engine']}: {entry['reason']}" for entry in result["missing"]]
    return "\n".join(lines).rstrip() + "\n"


def split_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the time by component of our engines, at their best number of threads."""
    rows = [row for row in rows if row["time_split_ms"] is not None and row["best_threads"]]
    parts = list(dict.fromkeys(part for row in rows for part in row["time_split_ms"]))
    parts.sort(key=lambda part: (part in ("loop", "text"), part))
    cells = [
        [
            row["engine"],
            row["mode"],
            *(_shown(part, row["time_split_ms"].get(part)) for part in parts),
            _shown("", row["tokens_per_round"]),
        ]
        for row in rows
    ]
    if not rows:
        return []
    names = ["engine", "mode", *(f"{part} ms" for part in parts), "tokens a round"]
    return ["Milliseconds for a sentence:", "", *_table(names, cells)]


def _table(names: Iterable[str], rows: Sequence[Sequence[str]]) -> list[str]:
    names = list(names)
    lines = [names, ["---"] * len(names), *rows]
    return [*("| " + " | ".join(line) + " |" for line in lines), ""]
