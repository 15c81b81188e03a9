from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import bergamot_tiny
from tests.helpers.model_server import ModelServer


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Bergamot folder with tiny weights."""
    folder = tmp_path_factory.mktemp("catalog") / "tiny"
    bergamot_tiny.write_folder(folder)
    return folder


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer().running() as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache with network access enabled."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    for name in ("HF_HUB_OFFLINE", "OUTRIDER_OFFLINE", "OUTRIDER_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / "models"
