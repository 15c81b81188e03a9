"""One YAML file per run; which changes a resume allows."""

from pathlib import Path
from typing import Any

import pytest

from outrider.config import build_config, load_config
from outrider.errors import ConfigError
from outrider.run_config import RunConfig, changed_key

DATA = {"folder": "prepared", "train": {"source": "a.en", "target": "a.de"}}
VALUES: dict[str, Any] = {"name": "n", "folder": "f", "data": DATA}


def dump(**changes: Any) -> dict[str, Any]:
    return build_config(RunConfig, {**VALUES, **changes}).model_dump(mode="json")


def test_every_config_of_the_repository_loads(repository: Path) -> None:
    files = sorted((repository / "configs").glob("*.yaml"))
    assert files
    for file in files:
        assert load_config(RunConfig, file).name == file.stem


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, None),
        ({"name": "other"}, None),
        ({"train": {"save_every": 7, "log_every": 1}}, None),
        ({"train": {"steps": 99}}, None),
        ({"evaluate": {"text": "t"}}, None),
        ({"train": {"learning_rate": 1.0}}, "train.learning_rate"),
        ({"train": {"batch_tokens": 1}}, "train.batch_tokens"),
        ({"seed": 5}, "seed"),
        ({"model": {"type": "seq2seq", "hidden_size": 8}}, "model.hidden_size"),
        ({"data": {**DATA, "clean": {"max_tokens": 9}}}, "data.clean.max_tokens"),
    ],
)
def test_only_changes_without_effect_on_results_are_allowed(
    changes: dict[str, Any], key: str | None
) -> None:
    assert changed_key(dump(), dump(**changes)) == key


def test_more_steps_change_a_schedule_that_depends_on_them() -> None:
    before = dump(train={"steps": 10, "schedule": "cosine"})
    after = dump(train={"steps": 20, "schedule": "cosine"})
    assert changed_key(before, after) == "train.steps"


def test_a_test_set_needs_both_sides() -> None:
    with pytest.raises(ConfigError, match="evaluate: source and reference belong together"):
        build_config(RunConfig, {**VALUES, "evaluate": {"source": "a"}})
    with pytest.raises(ConfigError, match="evaluate: give either source and reference, or text"):
        build_config(RunConfig, {**VALUES, "evaluate": {}})
