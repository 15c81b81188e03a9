"""Errors of a late stage are raised before a run starts."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.main import run as command
from outrider.config import as_yaml, build_config, load_config
from outrider.errors import ConfigError, MissingExtraError, OutriderError, ResourceError
from outrider.run_config import RunConfig
from outrider.torch.training import check
from outrider.torch.training.check import check_run, check_settings
from outrider.torch.training.kinds import kind_of

SIZES = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("a.en", "a.de", "test.en", "test.de", "text"):
        (tmp_path / name).write_text("a b\nb a\n")
    return tmp_path


def values(place: Path, **changes: Any) -> dict[str, Any]:
    """Values of a valid run; a dict changes keys within a section."""
    found: dict[str, Any] = {
        "name": "a",
        "folder": str(place / "run"),
        "data": {
            "folder": str(place / "data"),
            "root": str(place),
            "train": {"source": "a.en", "target": "a.de"},
            "valid_rows": 1,
        },
        "model": {"type": "seq2seq", **SIZES},
        "evaluate": {"source": "test.en", "reference": "test.de"},
    }
    if changes.get("model", {}).get("type") == "language_model":
        found["data"] = {
            "folder": str(place / "data"),
            "root": str(place),
            "train": {"target": "a.en"},
            "valid_fraction": 0.1,
        }
        found["evaluate"] = {"text": "text"}
    for key, change in changes.items():
        inside = isinstance(change, dict) and isinstance(found.get(key), dict)
        found[key] = {**found[key], **change} if inside and key != "evaluate" else change
    return found


def checked(place: Path, **changes: Any) -> None:
    check_run(build_config(RunConfig, values(place, **changes)))


LM = {"type": "language_model", "layers": 1, **SIZES}


@pytest.mark.parametrize("model", [{}, LM])
def test_valid_run_passes_all_checks(place: Path, model: dict[str, Any]) -> None:
    checked(place, model=model)
    assert not (place / "run").exists()
    assert not (place / "data").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "seed: got -1, expected greater than or equal to 0"),
        ({"seed": 2**32}, "seed: got 4294967296, expected less than 4294967296"),
        ({"train": {"adam_betas": [1.5, 0.9]}}, "train.adam_betas.0: got 1.5, expected less than"),
        ({"train": {"adam_betas": [0.9, 1.0]}}, "train.adam_betas.1: got 1.0, expected less than"),
        (
            {"evaluate": {"source": "a", "reference": "b", "tokenize": "zhh"}},
            "evaluate.tokenize: got 'zhh' (did you mean 'zh'?)",
        ),
        (
            {"model": LM, "evaluate": {"source": "test.en", "reference": "test.de"}},
            "evaluate.source: a language model is tested on evaluate.text instead",
        ),
        (
            {"evaluate": {"text": "text"}},
            "evaluate.text: applies to language models only; set evaluate.source and "
            "evaluate.reference",
        ),
        (
            {"model": LM, "train": {"stop_metric": "bleu"}},
            "train.stop_metric: a language model has no bleu; expected perplexity or loss",
        ),
        (
            {"train": {"stop_metric": "tokens_per_round"}},
            "train.stop_metric: only a drafter has tokens_per_round, not a seq2seq",
        ),
        (
            {"data": {"valid_rows": None}},
            "train.evaluate_every: got 500, but there is no validation set",
        ),
        (
            {
                "evaluate": {
                    "source": "test.en",
                    "reference": "test.de",
                    "decode": {"mode": "tandem"},
                }
            },
            "evaluate.decode.mode: tandem needs a drafter or a ctc decoder",
        ),
        (
            {"model": {"encoder_attention": {"kind": "sliding", "windw": 3}}},
            "model.encoder_attention.windw: unknown option of 'sliding' (did you mean 'window'?)",
        ),
        (
            {"model": {"position": "learned", "max_positions": 100}},
            "model.max_positions: got 100, but a row of the data may have 513 tokens",
        ),
        (
            {"model": {**LM, "position": "learned", "max_positions": 100}},
            "model.max_positions: got 100, but a row of the data may have 256 tokens",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_settings_that_contradict_each_other(
    place: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(place, **changes)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"evaluate": {"source": "tset.en", "reference": "test.de"}},
            "evaluate.source: {place}/tset.en: no such file (did you mean 'test.en'?)",
        ),
        (
            {"evaluate": {"source": "test.en", "reference": "."}},
            "evaluate.reference: {place}: cannot be read: Is a directory",
        ),
        (
            {"evaluate": {"source": "test.en", "reference": "long"}},
            "evaluate.reference: test.en has 2 lines and long has 3; line n of one must",
        ),
        (
            {"evaluate": {"source": "broken", "reference": "test.de"}},
            "evaluate.source: {place}/broken: damaged gzip file",
        ),
        (
            {"model": LM, "evaluate": {"text": "nowhere"}},
            "evaluate.text: {place}/nowhere: no such file",
        ),
        (
            {"data": {"train": {"source": "a.en", "target": "no.de"}}},
            "data.train: {place}/no.de: no such file (did you mean 'a.de'?)",
        ),
        (
            {"data": {"valid_rows": None, "valid": {"source": "v", "target": "a.de"}}},
            "data.valid: {place}/v: no such file",
        ),
        ({"folder": "text/run"}, "folder: got 'text/run', but {place}/text is not a folder"),
        ({"data": {"folder": "text/x"}}, "data.folder: got 'text/x', but {place}/text is not a"),
        ({"folder": "a\0b"}, "folder: got 'a\\x00b', expected the name of a folder"),
        ({"data": {"folder": " "}}, "data.folder: got ' ', expected the name of a folder"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_missing_files(
    place: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(place)
    (place / "long").write_text("a\nb\nc\n")
    (place / "broken").write_bytes(gzip.compress(b"a b c d e f g h i\n" * 9)[:-9])
    with pytest.raises(ConfigError) as caught:
        checked(place, **changes)
    assert str(caught.value).startswith(message.format(place=place))


def test_a_missing_tokenizer(place: Path) -> None:
    with pytest.raises(OutriderError, match="nowhere: no such folder"):
        checked(place, data={"tokenizer": {"folder": str(place / "nowhere")}})
    with pytest.raises(ConfigError, match=r"data\.source_tokenizer: has no effect"):
        checked(place, data={"source_tokenizer": {"folder": str(place)}})


@pytest.mark.parametrize("kind", ["drafter", "ctc"])
def test_a_missing_target(place: Path, kind: str) -> None:
    with pytest.raises(OutriderError, match=f"{place}/nowhere: no such folder"):
        checked(place, model={"type": kind, "target": str(place / "nowhere")})


def test_an_unwritable_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check.os, "access", lambda path, mode: Path(path) != place)
    with pytest.raises(ResourceError, match=f"folder: .*run: no permission to write in {place}$"):
        checked(place)


@pytest.mark.parametrize(
    ("changes", "package", "extra"),
    [
        ({"train": {"tensorboard": True}}, "tensorboard", "plot"),
        ({"data": {"train": {"hub": "org/name"}}}, "datasets", "hub"),
    ],
)
def test_a_missing_package(
    place: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], package: str, extra: str
) -> None:
    monkeypatch.setattr(check, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(MissingExtraError, match=rf"{package}.*outrider\[{extra}\]"):
        checked(place, **changes)


def test_commands_check_settings_first(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = build_config(RunConfig, values(place))
    (place / "run.yaml").write_text(as_yaml(right))
    for words in (["prepare"], ["train"]):
        line = [*words, str(place / "run.yaml"), "evaluate.source=nowhere"]
        assert command(line) == 2
        assert f"evaluate.source: {place}/nowhere: no such file" in capsys.readouterr().err
    assert command(["config", str(place / "run.yaml"), "train.stop_metric=tokens_per_round"]) == 2
    assert "train.stop_metric: only a drafter" in capsys.readouterr().err
    assert sorted(p.name for p in place.iterdir() if p.is_dir()) == []


def test_configs_of_the_repository_pass(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_DATA", "corpora")
    files = sorted((repository / "configs").rglob("*.yaml"))
    assert len(files) > 20
    for file in files:
        config = load_config(RunConfig, file)
        check_settings(config)
        if config.model.start is None:  # otherwise that folder sets the lengths
            check._check_lengths(kind_of(config))
