"""A corpus of several files, a model, and the expected output of an undisturbed run."""

from pathlib import Path

import pytest

from outrider.data import prepare as prepare_module
from outrider.jobs.distill import distill
from tests.helpers.letters import save_corpus, save_translator
from tests.helpers.slow_distill import BLOCK, UNITS


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_module, "BLOCK_ROWS", BLOCK)
        prepared = save_corpus(folder, lines=85, valid_rows=5, shard_rows=2 * BLOCK)
    assert sum(len(prepared.reader(split).block_rows) for split in ("train", "valid")) == UNITS
    save_translator(prepared, folder / "model")
    distill(folder / "model", folder / "prepared", folder / "whole", threads=1, progress=False)
    return folder
