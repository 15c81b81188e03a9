"""Small complete models, and copies of them to damage."""

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.helpers import drafted


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with every part: drafter and CTC decoder."""
    return drafted.save_translator(tmp_path_factory.mktemp("whole") / "model", ctc=True)


@pytest.fixture(scope="session")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model with a drafter."""
    return drafted.save_language_model(tmp_path_factory.mktemp("whole") / "text")


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Path]:
    """Copy a model folder so that it can be damaged."""

    def make(model: Path) -> Path:
        return Path(shutil.copytree(model, tmp_path / "model"))

    return make


@pytest.fixture
def dress(tmp_path: Path) -> Callable[[Path, str, str], Path]:
    """Return a model folder in which one file has another text and all others are links."""

    def make(model: Path, name: str, text: str) -> Path:
        folder = tmp_path / f"model-{next(numbers)}"
        place = folder / name
        place.parent.mkdir(parents=True)
        place.write_text(text)
        for inner in dict.fromkeys([folder, place.parent]):
            for path in (model / inner.relative_to(folder)).iterdir():
                if not (inner / path.name).exists():
                    (inner / path.name).symlink_to(path)
        return folder

    numbers = count()
    return make
