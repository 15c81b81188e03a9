"""Run configs: each mistake gives one error message with the key, before any work starts."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.config import explain
from outrider.run_config import RunConfig
from tests.helpers.attacked_run import CONFIG, write
from tests.helpers.forked import attack, attack_each

WRONG: tuple[Any, ...] = (None, [], "x", -1, 10**30, float("inf"))


def changed(key: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(CONFIG)
    node = config
    *above, last = key.split(".")
    for name in above:
        if not isinstance(node.get(name), dict):
            node[name] = {}
        node = node[name]
    node[last] = value
    return config


KEYS = sorted({field.key for field in explain(RunConfig) if "[]" not in field.key})


@pytest.mark.parametrize("key", KEYS)
def test_a_wrong_value(tmp_path: Path, key: str) -> None:
    paths = [tmp_path / f"{number}.yaml" for number in range(len(WRONG))]
    for path, value in zip(paths, WRONG, strict=True):
        path.write_text(yaml.safe_dump(changed(key, value)))
    attack_each([("config", path) for path in paths], tmp_path)


FILES = {
    "empty": b"",
    "list": b"- a\n- b\n",
    "text": b"hello",
    "tab": b"a:\n\t- b",
    "bomb": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [" % (98 + n, 98 + n) + b"*%c," % (97 + n) * 9 + b"]\n" for n in range(9)),
    "python": b"name: !!python/object/apply:os.system [id]\n",
    "binary": bytes(range(256)),
    "deep": b"[" * 5000,
    "deep mapping": b"".join(b" " * n + b"a:\n" for n in range(1500)),
    "same key": b"name: a\nname: b\n",
    "merge": b"<<: {name: a}\n",
    "number keys": b"1: a\n2.5: b\nnull: c\ntrue: d\n",
    "utf-16": "name: a\n".encode("utf-16"),
    "nul": b"name: a\0b\n",
    "long key": b"a" * 100_000 + b": 1\n",
    "recursive": b"a: &a [*a]\n",
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("command", ["config", "train"])
def test_a_file_that_is_not_a_config(tmp_path: Path, kind: str, command: str) -> None:
    (tmp_path / "run.yaml").write_bytes(FILES[kind])
    assert attack(command, "run.yaml", folder=tmp_path).code == 2


OVERRIDES = (
    *("", "=", "a", "=3", "train.steps", "train.steps=", "train..steps=3", "train.steps.x=3"),
    *("train=3", "model=null", "data.train.source.0=x", "x" * 5000 + "=1", "seed=[[[[", "name=\0"),
    *("train.steps=1e3", "train.steps=١٢", "folder=/dev/null/x", "seed=99999999999999999999"),
)


@pytest.mark.parametrize("override", OVERRIDES, ids=range(len(OVERRIDES)))
def test_an_invalid_override(tmp_path: Path, override: str) -> None:
    write(tmp_path, CONFIG)
    attack("config", "run.yaml", override, folder=tmp_path)


EARLY: dict[str, dict[str, Any]] = {
    "seed": {"seed": -1},
    "betas": {"train.adam_betas": [1.5, 0.9]},
    "metric": {"train.stop_metric": "bleu", "model": {"type": "language_model"}},
    "tokenize": {"evaluate": {"source": "train.en", "reference": "train.de", "tokenize": "zhh"}},
    "missing test": {"evaluate": {"source": "nowhere", "reference": "train.de"}},
    "heads": {"model.num_attention_heads": 3},
    "unknown part": {"model.nothing": 3},
    "no folder": {"folder": "train.en/run"},
    "target": {"model": {"type": "drafter", "target": "nowhere"}},
    "no target": {"model": {"type": "drafter"}},
}


@pytest.mark.parametrize("kind", EARLY)
@pytest.mark.parametrize("command", ["prepare", "train"])
def test_mistakes_are_reported_before_data_is_read(tmp_path: Path, kind: str, command: str) -> None:
    config = copy.deepcopy(CONFIG)
    for key, value in EARLY[kind].items():
        node = config
        *above, last = key.split(".")
        for name in above:
            node = node[name]
        node[last] = value
    write(tmp_path, config)
    outcome = attack(command, "run.yaml", folder=tmp_path)
    assert outcome.code == 2, outcome.out
    assert not (tmp_path / "data").exists(), "the corpus was prepared first"
