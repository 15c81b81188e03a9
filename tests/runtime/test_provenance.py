"""Result files are written whole and name their origin."""

import hashlib
import json
from pathlib import Path

from outrider.files import file_sha256
from outrider.runtime.provenance import machine, show_score, versions, write_result


def test_a_result_is_stamped_and_replaces_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "result.json"
    write_result(path, {"score": 1})
    write_result(path, {"score": 2, "name": "Straße"})
    result = json.loads(path.read_text(encoding="utf-8"))
    assert (result["score"], result["name"]) == (2, "Straße")
    assert result["date"].startswith("2")
    assert [one.name for one in path.parent.iterdir()] == ["result.json"]


def test_checksum_is_sha256(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"outrider")
    assert file_sha256(path) == hashlib.sha256(b"outrider").hexdigest()


def test_versions_and_machine_are_recorded() -> None:
    assert versions().keys() >= {"python", "outrider", "torch", "transformers", "sacrebleu"}
    assert machine().keys() >= {"processor", "cores", "threads"}


def test_scores_are_formatted_for_readers() -> None:
    assert show_score(38.556106436861654) == "38.556"
    assert show_score(1000) == "1000"
    assert show_score("nrefs:1|case:mixed") == "nrefs:1|case:mixed"
