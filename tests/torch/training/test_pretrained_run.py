"""Runs with a pretrained encoder, frozen or trained."""

import json
import random
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import outrider
from outrider.config import build_config
from outrider.data.prepare import open_prepared, prepare
from outrider.errors import ConfigError, DataError
from outrider.jobs.distill import distill
from outrider.run_config import RunConfig
from outrider.text.tokenizer.pair import SOURCE_FILE, PairTokenizer
from outrider.torch.training.run import train_run
from tests.helpers.bert import CLS, SEP, save_encoder

DECODER = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
TRAIN = {
    "steps": 2,
    "batch_tokens": 256,
    "learning_rate": 0.01,
    "warmup": 1,
    "save_every": 1,
    "evaluate_every": 2,
    "stop_metric": "bleu",
    "average": 2,
    "log_every": 1,
    "device": "cpu",
}
PREFIX = "pretrained.model."


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus and an encoder."""
    folder, dice = tmp_path_factory.mktemp("home"), random.Random(0)
    lines = ["".join(dice.choices("abcd ", k=dice.randint(2, 12))) + "." for _ in range(80)]
    (folder / "train.en").write_text("".join(f"{line.upper()}\n" for line in lines))
    (folder / "train.de").write_text("".join(f"{line[::-1]}\n" for line in lines))
    save_encoder(folder / "encoder")
    return folder


def run(home: Path, folder: Path, **changes: Any) -> RunConfig:
    """A run config; keys that start with `data_`, `encoder_` or `train_` go into that section."""
    data: dict[str, Any] = {
        "folder": str(folder / "prepared"),
        "root": str(home),
        "train": {"source": "train.en", "target": "train.de"},
        "valid_rows": 8,
        "tokenizer": {"kind": "char", "vocab_size": 32},
        "source_tokenizer": {"folder": "encoder"},
        "clean": {"drop_duplicates": False, "max_tokens": 30},
    }
    encoder: dict[str, Any] = {"pretrained": str(home / "encoder")}
    sections = {"data": data, "encoder": encoder, "train": dict(TRAIN), "model": {}}
    for key, value in changes.items():
        section, name = key.split("_", 1)
        sections[section][name] = value
    model = {**DECODER, "decoder_layers": 1, "encoder": encoder, **sections["model"]}
    values = {"name": "read", "folder": str(folder / "run"), "data": data, "model": model}
    return build_config(RunConfig, {**values, "train": sections["train"]})


def encoder_weights(folder: Path) -> dict[str, torch.Tensor]:
    found = load_file(folder / "model.safetensors")
    return {n.removeprefix(PREFIX): w for n, w in found.items() if n.startswith(PREFIX)}


@pytest.mark.parametrize("freeze", [True, False])
def test_a_run_freezes_or_trains_the_encoder(home: Path, tmp_path: Path, freeze: bool) -> None:
    shutil.copytree(home / "encoder", tmp_path / "encoder")
    config = run(
        home, tmp_path, encoder_freeze=freeze, encoder_pretrained=str(tmp_path / "encoder")
    )
    folder = train_run(config)
    before = load_file(home / "encoder" / "model.safetensors")
    after = encoder_weights(folder)
    assert after.keys() == {name for name in before if not name.startswith("pooler")}
    moved = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    still = {"embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"}
    assert not moved if freeze else moved >= after.keys() - still - _unmoved_by_softmax(after)

    states = torch.load(tmp_path / "run" / "checkpoints" / "step-00000002" / "optimizer.pt")[
        "state"
    ]
    trained = len(load_file(folder / "model.safetensors")) - (len(after) if freeze else 0)
    assert len(states) == trained, "what is frozen has no optimizer state"

    shutil.rmtree(tmp_path / "encoder")
    model = outrider.load(folder)
    texts = ["ab cd", "DCB."]
    assert model.translate(texts) == [model.translate(text) for text in texts]
    assert (folder / SOURCE_FILE).is_file()
    assert "pretrained" not in json.loads((folder / "config.json").read_text())["encoder"]
    provenance = json.loads((folder / "provenance.json").read_text())
    assert len(provenance["encoder"]["weights"]["model.safetensors"]) == 64


def _unmoved_by_softmax(weights: dict[str, torch.Tensor]) -> set[str]:
    """A constant added to all keys changes no attention weight, so their bias has no gradient."""
    return {name for name in weights if name.endswith("key.bias")}


def test_resuming_changes_nothing(home: Path, tmp_path: Path) -> None:
    options = {"encoder_freeze": False, "train_evaluate_every": 0, "train_save_every": 2}
    options["train_stop_metric"] = "loss"
    whole = train_run(run(home, tmp_path / "whole", **options, train_steps=4))
    train_run(run(home, tmp_path / "parts", **options))
    parts = train_run(run(home, tmp_path / "parts", **options, train_steps=4))
    weights = "model.safetensors"
    assert (parts / weights).read_bytes() == (whole / weights).read_bytes()


def test_the_prepared_folder_contains_both_vocabularies(home: Path, tmp_path: Path) -> None:
    train_run(run(home, tmp_path))
    prepared = open_prepared(tmp_path / "prepared")
    tokenizer = prepared.tokenizer
    assert isinstance(tokenizer, PairTokenizer)
    assert tokenizer.source.end_id == SEP
    ids = prepared.reader("train").ids(0, "source_ids")
    assert set(ids.flat[ids.offsets[:-1]].tolist()) == {CLS}
    assert SEP not in ids.flat
    assert "A" not in tokenizer.target.pipeline.get_vocab(), "sources do not train the target's"


def test_drafter_and_ctc_decoder_with_a_pretrained_encoder(home: Path, tmp_path: Path) -> None:
    """Distillation and side decoders work as for models without a pretrained encoder."""
    target = train_run(run(home, tmp_path, train_steps=6, train_save_every=6))
    data, out = tmp_path / "prepared", tmp_path / "distilled"
    distill(target, data, out, progress=False, strategy="sample")  # greedy decoding would not end
    side_decoders = {"drafter": {"rank": 4, "block": 8, "train_block": 4}, "ctc": {"layers": 1}}
    folder = target
    for kind, options in side_decoders.items():
        values = {
            "name": kind,
            "folder": str(tmp_path / kind),
            "data": {"folder": str(tmp_path / "distilled")},
            "model": {"type": kind, "target": str(folder), **options},
            "train": {**TRAIN, "stop_metric": "loss"},
        }
        folder = train_run(build_config(RunConfig, values))
        last = values
    path = tmp_path / "distilled" / SOURCE_FILE
    path.write_text(path.read_text().replace('"lowercase":true', '"lowercase":false'))
    with pytest.raises(DataError, match="their sources are read differently"):
        train_run(build_config(RunConfig, {**last, "folder": str(tmp_path / "again")}))

    model = outrider.load(folder)
    texts = (home / "train.en").read_text().splitlines()[:9]
    assert model.translate(texts, mode="tandem", draft_tokens=3) == model.translate(texts)
    assert model.translate(texts) == outrider.load(target).translate(texts)
    assert len(model.translate(texts, mode="parallel")) == 9


def test_an_encoder_of_the_hub(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(hub_id: str, *, allow_patterns: list[str]) -> str:
        assert hub_id == "someone/bert"
        for name in ("pytorch_model.bin", "modeling.py"):
            assert not any(fnmatch(name, pattern) for pattern in allow_patterns)
        return str(home / "encoder")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    name = "someone/bert"
    config = run(home, tmp_path, encoder_pretrained=name, data_source_tokenizer={"folder": name})
    assert outrider.load(train_run(config)).tokenizer.encode("a")[0] == CLS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data_source_tokenizer": None},
            r"data\.source_tokenizer: is required: .* use \{folder: ",
        ),
        ({"model_encoder": None}, r"data\.source_tokenizer: has no effect without model\.encoder"),
        ({"data_clean": {"max_tokens": 40}}, r"data\.clean\.max_tokens: got 40, .* at most 39"),
        ({"model_encoder": "bert"}, r"model\.encoder: got 'bert', expected \{pretrained: FOLDER\}"),
        ({"encoder_end": 3}, r"model\.encoder\.end: comes from the pretrained encoder"),
        ({"encoder_layer": 9}, r"model\.encoder\.layer: got 9, expected 0"),
        ({"encoder_freze": True}, r"model\.encoder\.freze: unknown key .*'freeze'"),
        ({"model_encoder_layers": 2}, r"model\.encoder_layers: has no effect with encoder"),
        ({"data_source_tokenizer": {"folder": "."}}, r"source_tokenizer\.folder: .* no tokenizer"),
    ],
)
def test_incompatible_settings_are_refused(
    home: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train_run(run(home, tmp_path, **changes))


def test_prepared_data_of_the_other_kind_is_refused(home: Path, tmp_path: Path) -> None:
    train_run(run(home, tmp_path))
    values = run(home, tmp_path).model_dump(mode="json")
    values["data"] = {"folder": str(tmp_path / "prepared")}
    values["folder"] = str(tmp_path / "other")
    own = {**values, "model": DECODER}
    with pytest.raises(DataError, match="are tokens of a pretrained encoder, but the run has none"):
        train_run(build_config(RunConfig, own))
    save_encoder(tmp_path / "small", vocab_size=20)
    other = {**values["model"], "encoder": {"pretrained": str(tmp_path / "small")}}
    with pytest.raises(DataError, match="the pretrained encoder only 20; use the encoder's"):
        train_run(build_config(RunConfig, {**values, "model": other}))
    (tmp_path / "prepared" / SOURCE_FILE).unlink()
    with pytest.raises(DataError, match=r"source_ids holds the token 57, but the vocabulary ends"):
        train_run(build_config(RunConfig, values))
    plain = run(home, tmp_path, data_folder=str(tmp_path / "plain"), data_source_tokenizer=None)
    prepare(plain.data, progress=False)
    values["data"] = {"folder": str(tmp_path / "plain")}
    with pytest.raises(DataError, match=r"prepare it with data\.source_tokenizer"):
        train_run(build_config(RunConfig, values))
