"""Runs that start from an Outrider or Marian model: whole, cut, frozen or adapted."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import MarianConfig, MarianMTModel

import outrider
from outrider.config import build_config
from outrider.data.config import TokenizerConfig
from outrider.data.prepare import open_prepared
from outrider.data.tokenizer_training import train_tokenizer
from outrider.decoding import DecodeConfig
from outrider.errors import ConfigError, DataError
from outrider.evaluation.evaluate import evaluate_translation
from outrider.run_config import RunConfig
from outrider.text.tokenizer import load_tokenizer
from outrider.text.tokenizer.sentencepiece_export import write_sentencepiece
from outrider.torch.models import load_model
from outrider.torch.training.log import read_log
from outrider.torch.training.run import train_run
from outrider.torch.training.start import freeze
from tests.helpers import letters, tiny

TRAIN = {
    "steps": 4,
    "batch_tokens": 256,
    "learning_rate": 0.01,
    "warmup": 1,
    "save_every": 2,
    "evaluate_every": 0,
    "average": 2,
    "log_every": 1,
    "device": "cpu",
}
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a Marian folder (3 + 2 layers) and an Outrider model, each with a tokenizer."""
    folder, dice = tmp_path_factory.mktemp("home"), random.Random(0)
    words = ["".join(dice.choices("abcdefgh", k=dice.randint(1, 4))) for _ in range(12)]
    lines = [" ".join(dice.choices(words, k=dice.randint(1, 5))) for _ in range(200)]
    (folder / "train.en").write_text("".join(f"{line}\n" for line in lines))
    (folder / "train.de").write_text("".join(f"{line.upper()} !\n" for line in lines))
    both = [*lines, *(line.upper() for line in lines), "! ."]
    unigram = train_tokenizer(both, TokenizerConfig(vocab_size=400))
    write_sentencepiece(unigram, folder / "marian")
    save_marian(folder / "marian", unigram.vocab_size)
    (folder / "letters").mkdir()
    prepared = letters.save_corpus(folder / "letters", lines=60, valid_rows=5)
    letters.save_translator(prepared, folder / "ours")
    return folder


def save_marian(folder: Path, words: int, *, seed: int = 0) -> None:
    torch.manual_seed(seed)
    heads = {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    inner = {f"{side}_ffn_dim": 32 for side in ("encoder", "decoder")}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    config = MarianConfig(
        vocab_size=words,
        d_model=16,
        encoder_layers=3,
        decoder_layers=2,
        **heads,
        **inner,
        **ids,
        scale_embedding=True,
        forced_eos_token_id=None,
        init_std=0.2,
    )
    MarianMTModel(config).save_pretrained(folder)


def run(home: Path, folder: Path, **changes: Any) -> RunConfig:
    """A run config; keys that start with `data_`, `model_` or `train_` go into that section."""
    data = {
        "folder": str(folder / "prepared"),
        "root": str(home),
        "train": {"source": "train.en", "target": "train.de"},
        "valid_rows": 8,
        "clean": {"drop_duplicates": False},
    }
    model = changes.pop("model", {"start": str(home / "marian")})
    sections: dict[str, dict[str, Any]] = {"data": data, "model": model, "train": dict(TRAIN)}
    for key, value in changes.items():
        section, name = key.split("_", 1)
        sections[section][name] = value
    return build_config(RunConfig, {"name": "on", "folder": str(folder / "run"), **sections})


def moved(folder: Path, before: dict[str, torch.Tensor]) -> set[str]:
    after = load_file(folder / WEIGHTS)
    assert after.keys() == before.keys()
    return {name for name, weight in after.items() if not torch.equal(weight, before[name])}


def weights_of(home: Path) -> dict[str, torch.Tensor]:
    return load_model(home / "marian").state_dict()


def test_run_starts_from_a_marian_folder_with_its_tokenizer(home: Path, tmp_path: Path) -> None:
    folder = train_run(run(home, tmp_path, train_learning_rate=1e-4))
    before, after = weights_of(home), load_file(folder / WEIGHTS)
    assert moved(folder, before) >= {n for n in before if "norm" in n}
    assert all(torch.allclose(after[n], before[n], atol=2e-3) for n in before)
    given = json.loads((home / "marian" / "vocab.json").read_text())
    for kept in (tmp_path / "prepared", folder):
        assert json.loads((kept / "vocab.json").read_text()) == given
    assert isinstance(outrider.load(folder).translate("ab"), str)
    found = json.loads((folder / "provenance.json").read_text())["start"]
    assert found["model"] == str(home / "marian")
    assert len(found["weights"][WEIGHTS]) == 64
    assert "Training started from `marian`" in (folder / "README.md").read_text()


def test_the_score_on_the_new_text_rises(home: Path, tmp_path: Path) -> None:
    """A model that copies letters learns that each is followed by a mark here."""
    text = home / "letters"
    size = {**letters.SIZE, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    base = train_run(
        run(
            home,
            tmp_path / "first",
            model=size,
            data_root=str(text),
            data_tokenizer={"kind": "char", "vocab_size": 32},
            train_steps=150,
            train_save_every=50,
        )
    )
    lines = (text / "train.en").read_text().splitlines()
    for name, end in (("en", ""), ("de", ".")):
        (tmp_path / f"new.{name}").write_text("".join(f"{line}{end}\n" for line in lines))
    tuned = train_run(
        run(
            home,
            tmp_path,
            data_root=str(tmp_path),
            data_train={"source": "new.en", "target": "new.de"},
            model_start=str(base),
            train_steps=60,
            train_save_every=20,
        )
    )
    new = {"source": tmp_path / "new.en", "reference": tmp_path / "new.de"}
    decode = DecodeConfig()
    results = [evaluate_translation(one, **new, decode=decode) for one in (base, tuned)]
    scores = [result["scores"]["chrf"] for result in results]
    assert scores[1] > scores[0] + 5


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model_keep_layers": {"encoder": [0, 2], "decoder": [1]}, "model_dropout": 0.3},
        {"model_freeze": ["encoder", "embeddings"]},
        {"data_tokenizer": {"new_tokens": ["<tag>"]}},
        {"model_lora": {"rank": 4, "dropout": 0.2}},
    ],
    ids=["whole", "cut", "frozen", "grown", "lora"],
)
def test_resuming_changes_nothing(home: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    if "model_lora" in changes:
        pytest.importorskip("peft")
    whole = train_run(run(home, tmp_path / "whole", **changes))
    train_run(run(home, tmp_path / "parts", **changes, train_steps=2))
    parts = train_run(run(home, tmp_path / "parts", **changes))
    assert (parts / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()


def test_forbidden_token_does_not_dominate_the_loss(home: Path, tmp_path: Path) -> None:
    """Some files give padding a bias of -1e9, and label smoothing includes every token."""
    shutil.copytree(home / "marian", tmp_path / "start")
    model = MarianMTModel.from_pretrained(tmp_path / "start")
    model.final_logits_bias[0, 0] = -1e9
    model.save_pretrained(tmp_path / "start")
    folder = train_run(run(home, tmp_path, model_start=str(tmp_path / "start")))
    losses = [one["loss"] for one in read_log(folder.parent / "log.jsonl") if "loss" in one]
    assert max(losses) < 20
    assert load_file(folder / WEIGHTS)["logits_bias"][0] < -90, "it is still never said"


def test_frozen_parts_stay_and_have_no_optimizer_state(home: Path, tmp_path: Path) -> None:
    freeze = ["embeddings", "encoder.0", "encoder.2", "head"]
    folder = train_run(run(home, tmp_path, model_freeze=freeze))
    before = weights_of(home)
    prefixes = ("tokens.", "encoder.blocks.0.", "encoder.blocks.2.", "logits_bias")
    still = {name for name in before if name.startswith(prefixes)}
    learnt = moved(folder, before)
    assert not learnt & still
    assert learnt >= {name for name in before.keys() - still if name.endswith("weight")}
    states = torch.load(tmp_path / "run" / "checkpoints" / "step-00000004" / "optimizer.pt")
    assert len(states["state"]) == len(before) - len(still)


def test_layers_are_left_out(home: Path, tmp_path: Path) -> None:
    config = run(
        home,
        tmp_path,
        model_keep_layers={"encoder": [2], "decoder": [0]},
        train_learning_rate=1e-6,
        train_steps=1,
        train_save_every=1,
    )
    folder = train_run(config)
    before, after = weights_of(home), load_file(folder / WEIGHTS)
    name = "feedforward.up.weight"
    assert torch.allclose(
        after[f"encoder.blocks.0.{name}"], before[f"encoder.blocks.2.{name}"], atol=1e-4
    )
    described = json.loads((folder / "config.json").read_text())
    assert (described["encoder_layers"], described["decoder_layers"]) == (1, 1)
    assert isinstance(outrider.load(folder).translate("ab"), str)


def test_new_tokens_are_trained(home: Path, tmp_path: Path) -> None:
    lines = (home / "train.en").read_text().splitlines()
    (tmp_path / "new.en").write_text("".join(f"<tag> {line}\n" for line in lines))
    (tmp_path / "new.de").write_text("".join(f"{line} <tag>\n" for line in lines))
    changes = {
        "data_root": str(tmp_path),
        "data_train": {"source": "new.en", "target": "new.de"},
        "data_tokenizer": {"new_tokens": ["<tag>"]},
    }
    folder = train_run(run(home, tmp_path, **changes))
    words = load_tokenizer(home / "marian").vocab_size
    ids = open_prepared(tmp_path / "prepared").reader("train").ids(0, "source_ids")
    assert set(ids.flat[ids.offsets[:-1]].tolist()) == {words}
    before, after = weights_of(home)["tokens.weight"], load_file(folder / WEIGHTS)["tokens.weight"]
    assert len(after) == words + 1
    assert (after[words] - before.mean(0)).abs().max() > 1e-3
    model = outrider.load(folder)
    assert model.tokenizer.encode("<tag> ab")[0] == words
    tuned = train_run(run(home, tmp_path / "again", model_start=str(folder)))
    assert len(load_file(tuned / WEIGHTS)["tokens.weight"]) == words + 1, "kept from then on"


def test_adapters_are_trained_and_merged(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    lora = {"rank": 2, "alpha": 4, "parts": ["attention", "cross"]}
    folder = train_run(run(home, tmp_path, model_lora=lora))
    before, after = weights_of(home), load_file(folder / WEIGHTS)
    names = ("attention.qkv", "attention.out", "cross.q", "cross.kv", "cross.out")
    assert moved(folder, before) == {
        n for n in before if n.endswith(tuple(f"{x}.weight" for x in names))
    }
    steps = [tmp_path / "run" / "checkpoints" / f"step-0000000{n}" / WEIGHTS for n in (2, 4)]
    name = "decoder.blocks.1.cross.q"
    deltas = []
    for found in map(load_file, steps):
        a, b = (found[f"{name}.lora_{x}.default.weight"] for x in "AB")
        deltas.append(2 * b @ a)
    wanted = before[f"{name}.weight"] + (deltas[0] + deltas[1]) / 2
    assert torch.allclose(after[f"{name}.weight"], wanted, atol=1e-6)
    states = torch.load(steps[1].with_name("optimizer.pt"))["state"]
    assert len(states) == sum("lora_" in found for found in load_file(steps[1]))


def test_language_model_starts_from_a_model(home: Path, tmp_path: Path) -> None:
    size = {**letters.SIZE, "layers": 2, "dropout": 0.0}
    data = {
        "data_train": {"target": "train.de"},
        "data_valid_rows": None,
        "data_valid_fraction": 0.1,
        "data_clean": {},
        "data_sequence_length": 16,
    }
    model = {"type": "language_model", **size}
    given = {"model": model, "data_tokenizer": {"kind": "char"}}
    base = train_run(run(home, tmp_path / "first", **data, **given))
    data["model_type"] = "language_model"
    keep = {"decoder": [1]}
    changes = {"model_start": str(base), "model_keep_layers": keep, "model_freeze": ["head"]}
    with pytest.raises(
        ConfigError, match=r"model\.freeze: this model has no 'head'; expected some"
    ):
        train_run(run(home, tmp_path, **data, **changes))
    folder = train_run(run(home, tmp_path, **data, **{**changes, "model_freeze": ["embeddings"]}))
    before, after = load_file(base / WEIGHTS), load_file(folder / WEIGHTS)
    assert torch.equal(after["tokens.weight"], before["tokens.weight"])
    assert not torch.equal(
        after["decoder.blocks.0.feedforward.up.weight"],
        before["decoder.blocks.1.feedforward.up.weight"],
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_hidden_size": 8}, r"model\.hidden_size: comes from model\.start; leave it out"),
        ({"model_dropot": 0.1}, r"model\.dropot: .*did you mean 'dropout'"),
        ({"model_start": "/nowhere"}, r"model\.start: /nowhere: no such folder"),
        ({"model_type": "language_model"}, r"model\.type: got language_model, but .* is a seq2seq"),
        ({"model_type": "drafter"}, r"model\.start: a drafter is trained from fresh weights"),
        ({"model_freeze": ["encoder.7"]}, r"model\.freeze: this model has no 'encoder\.7'"),
        (
            {"model_freeze": ["encoder", "decoder", "embeddings", "head"]},
            r"model\.freeze: freezes all weights",
        ),
        ({"model_keep_layers": {"decoder": [2]}}, r"model\.keep_layers\.decoder: got \[2\]"),
        ({"model_keep_layers": {"middle": [2]}}, r"model\.keep_layers\.middle: unknown key"),
        ({"model_lora": {"rank": 0}}, r"model\.lora\.rank: got 0"),
        (
            {"model_lora": {}, "model_freeze": ["encoder"]},
            r"model\.freeze: has no effect: model\.lora freezes all",
        ),
        (
            {"model_lora": {}, "data_tokenizer": {"new_tokens": ["<a>"]}},
            r"model\.lora: freezes embeddings, but data\.tokenizer\.new_tokens",
        ),
        (
            {"model_freeze": ["embeddings"], "data_tokenizer": {"new_tokens": ["<a>"]}},
            r"model\.freeze: freezes embeddings",
        ),
        ({"data_tokenizer": {"kind": "char"}}, r"data\.tokenizer: folder takes an existing"),
        ({"data_tokenizer": {"new_tokens": ["</s>"]}}, r"'</s>' is in the vocabulary already"),
        ({"data_source_tokenizer": {"folder": "x"}}, r"data\.source_tokenizer: comes with model"),
    ],
)
def test_incompatible_settings_are_refused(
    home: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train_run(run(home, tmp_path, **changes))
    assert not (tmp_path / "prepared").exists(), "said before anything is prepared"


def test_one_side_can_be_frozen() -> None:
    apart = tiny.seq2seq(share_embeddings=False)
    freeze(apart, ("source_embeddings", "encoder"))
    assert not apart.encode(torch.tensor([[5, 6]])).requires_grad
    assert apart.tokens.weight.requires_grad
    with pytest.raises(
        ConfigError, match=r"no 'source_embeddings' \(did you mean 'embeddings'\?\)"
    ):
        freeze(tiny.seq2seq(), ("source_embeddings",))


@pytest.mark.parametrize("key", ["keep_layers", "freeze", "lora"])
def test_keys_that_need_a_start_are_refused_without_it(
    home: Path, tmp_path: Path, key: str
) -> None:
    value = ["encoder"] if key == "freeze" else {}
    values = run(home, tmp_path).model_dump(mode="json")
    values["data"]["tokenizer"] = {"kind": "char"}
    with pytest.raises(ConfigError, match=rf"model\.{key}: needs model\.start"):
        train_run(build_config(RunConfig, {**values, "model": {key: value}}))


def test_model_with_language_tokens_is_refused(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "ours", tmp_path / "start")
    path = tmp_path / "start" / "generation_config.json"
    path.write_text(json.dumps({"forced_bos_token_id": 7}))
    with pytest.raises(ConfigError, match=r"model\.start: .*start adds language tokens"):
        train_run(run(home, tmp_path, model_start=str(tmp_path / "start")))


def test_data_of_another_tokenizer_is_refused(home: Path, tmp_path: Path) -> None:
    other = run(home, tmp_path, data_tokenizer={"folder": str(home / "ours")})
    with pytest.raises(DataError, match="was prepared with another tokenizer than that of"):
        train_run(other)


def test_another_model_under_the_same_name_is_refused(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "marian", tmp_path / "start")
    config = run(home, tmp_path, model_start=str(tmp_path / "start"))
    train_run(config)
    save_marian(tmp_path / "start", load_tokenizer(home / "marian").vocab_size, seed=1)
    with pytest.raises(ConfigError, match=r"model\.start: has other weights than when"):
        train_run(config)
