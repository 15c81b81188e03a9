"""`outrider lab bench serve` end to end on a tiny model, and its clients."""

import json
from pathlib import Path

import pytest

from outrider.cli.main import run
from outrider.errors import ResourceError
from outrider.serving.engine import Engine
from outrider.serving.registry import read_spec
from outrider_lab.bench.serve.clients import ask_all, first_tokens
from tests.helpers import drafted
from tests.helpers.served import serving

pytest.importorskip("ctranslate2")
pytest.importorskip("outrider_native")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafted.save_translator(tmp_path_factory.mktemp("bench") / "tiny", drafter=False)


def test_clients_send_and_count_requests(model: Path) -> None:
    bodies = [{"q": f"two men {n}", "source": "en", "target": "de"} for n in range(12)]
    asked = [{"model": "en-de", "prompt": "two men", "stream": True}] * 3
    with serving(Engine([read_spec(f"en-de={model}")])) as url:
        load = ask_all(url, bodies, clients=4)
        waited = first_tokens(url, asked, clients=2)
        with pytest.raises(ResourceError, match="400"):
            ask_all(url, [bodies[0] | {"target": "fr"}], clients=1)
    assert len(load.latencies) == 12
    assert all(load.texts)
    assert load.speed > 0
    assert len(waited) == 3


@pytest.mark.slow
def test_command_writes_its_output_files(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "serve.json"
    line = ["lab", "bench", "serve", f"en-de={model}", "--json", str(path)]
    line += ["--png", str(tmp_path / "serve.png")]
    assert run([*line, "--lines", "64", "--repeats", "1", "--clients", "1,8"]) == 0
    assert (tmp_path / "serve.png").read_bytes()[:4] == b"\x89PNG"
    found = json.loads(path.read_text())
    assert found["ratio_to_offline"] > 0
    assert found["ratio_to_ctranslate2_server"] > 0
    assert found["ratio_to_libretranslate"] is None
    ours = [row for row in found["rows"] if row["server"] == "outrider"]
    assert [row["clients"] for row in ours] == [1, 8]
    for row in ours:
        assert row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert row["first_token_ms"] > 0
        assert row["memory_mib"] > 10
    assert found["machine"]["processor"]
