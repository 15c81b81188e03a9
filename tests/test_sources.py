"""The page about the source documents names existing files and counts its verdicts."""

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from tests.helpers.docs_part import docs_part

ROOT = Path(__file__).parents[1]
ITEMS = {
    "Fast Autoregressive Transformer (FAT)": 25,
    "Mixture of AR and NAR": 16,
    "Fast Autoregressive Transformer with positional correlation (FAST)": 13,
    "The Powerful Transformer": 12,
    "The Transformer Family": 24,
}
VERDICTS = ("yes", "argued", "not shown", "open")


def documents() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(
        (ROOT / "docs" / "sources.yaml").read_text(encoding="utf-8")
    )
    return found


def test_every_item_has_a_verdict_and_an_existing_file() -> None:
    assert {one["document"]: len(one["items"]) for one in documents()} == ITEMS
    for document in documents():
        assert (ROOT / "docs" / document["page"]).is_file()
        for row in document["items"]:
            assert row["verdict"] in VERDICTS, row
            assert row["where"], row
            for path in row["where"]:
                assert (ROOT / path).exists(), f"{row['item']}: {path}"
            if row["verdict"] in ("not shown", "open"):
                assert row.get("why"), row


def test_the_page_explains_and_counts_every_verdict() -> None:
    page = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| ([a-z ]+) \| it", page, re.MULTILINE)) == VERDICTS
    site = SimpleNamespace(file=SimpleNamespace(src_uri="sources.md"))
    shown = docs_part("hooks").on_page_markdown(page, page=site)
    rows = [row for one in documents() for row in one["items"]]
    for part in (rows, *(one["items"] for one in documents())):
        counts = Counter(row["verdict"] for row in part)
        told = ", ".join(f"{counts[word]} {word}" for word in VERDICTS if counts[word])
        assert f"{len(part)} items, {told}." in shown


def test_items_without_a_result_are_not_called_done() -> None:
    """A recipe needs a result, a picture needs a file, and a claim needs a run."""
    verdicts = {row["item"]: row["verdict"] for one in documents() for row in one["items"]}
    assert not list((ROOT / "results").glob("*wmt14*"))
    assert not list((ROOT / "results").glob("*wikitext103*"))
    for item in ("WMT14", "WikiText-103", "pre-training as GPT does", "the same for BERT"):
        assert verdicts[item] == "not shown", item
    for item in ("CNN encoder", "audio and video, which are named"):
        assert verdicts[item] == "open", item
