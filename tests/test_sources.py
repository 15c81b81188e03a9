"""The page about the source documents names what is there."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
ITEMS = {"000": 22, "001": 16, "002": 12, "003": 11, "004": 23}


def test_every_item_has_a_verdict_and_a_place_that_exists() -> None:
    documents = yaml.safe_load((ROOT / "docs" / "sources.yaml").read_text(encoding="utf-8"))
    assert {one["document"]: len(one["items"]) for one in documents} == ITEMS
    for document in documents:
        assert (ROOT / "docs" / document["page"]).is_file()
        for row in document["items"]:
            assert row["verdict"] in ("yes", "argued", "open"), row
            assert row["where"], row
            for path in row["where"]:
                assert (ROOT / path).exists(), f"{row['item']}: {path}"
            if row["verdict"] == "open":
                assert row.get("why"), row
