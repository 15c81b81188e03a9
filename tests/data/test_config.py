"""Prepare configs: contradictions are refused before a file is opened."""

from pathlib import Path
from typing import Any

import pytest

from outrider.config import build_config
from outrider.data.config import PrepareConfig
from outrider.errors import ConfigError

FILES = {"source": "a", "target": "b"}


def build(**values: Any) -> PrepareConfig:
    return build_config(PrepareConfig, {"folder": "f", "train": FILES} | values, prefix="data.")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train": {}}, "data.train: give either source and target files, or pairs, or hub"),
        ({"train": FILES | {"hub": "x"}}, "data.train: give either source and target"),
        ({"train": {"source": ["a", "b"], "target": "c"}}, "source lists 2 files and target 1"),
        ({"valid": FILES, "valid_rows": 9}, "give only one of valid and valid_rows"),
        ({"tokenizer": {"folder": "x", "kind": "bpe"}}, "so kind has no effect"),
        ({"tokenizer": {"kind": "bpe", "coverage": 0.99}}, "coverage has no effect on kind: bpe"),
        ({"clean": {"max_ration": 3}}, "clean.max_ration: unknown key .did you mean 'max_ratio'"),
        ({"shard_rows": 0}, "data.shard_rows: got 0, expected"),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**values)


def test_one_or_several_files() -> None:
    assert build().train.source == ("a",)
    assert build(train={"source": ["a", "c"], "target": ["b", "d"]}).train.source == ("a", "c")


def test_paths_start_from_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORPORA", "/data")
    assert build().path("a/b") == Path("a/b")
    assert build(root="$CORPORA/x").path("a") == Path("/data/x/a")
    assert build(root="$CORPORA/x").path("/abs") == Path("/abs")


def test_an_unknown_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CORPORA", raising=False)
    with pytest.raises(ConfigError, match=r"data.root: got '\$CORPORA/x', but \$CORPORA is not se"):
        build(root="$CORPORA/x").path("a")
